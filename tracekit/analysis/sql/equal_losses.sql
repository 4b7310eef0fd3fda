-- In how many steps the first losses of some ranks were equal, and how many losses there were.
SELECT
  COUNT(*) AS steps,
  SUM(CASE WHEN low = high THEN 1 ELSE 0 END) AS equal,
  COUNT(DISTINCT low) AS different
FROM (
  SELECT step, MIN(value) AS low, MAX(value) AS high, COUNT(*) AS told
  FROM (
    SELECT events.rank AS rank, events.step AS step, MIN_BY(events.value, events.time_ns) AS value
    FROM events JOIN compared ON compared.rank = events.rank
    WHERE events.attempt = :attempt AND events.name = 'loss' AND events.step BETWEEN :first AND :last
      AND events.value BETWEEN -1e300 AND 1e300
    GROUP BY events.rank, events.step
  ) firsts
  GROUP BY step
) losses
WHERE told = (SELECT COUNT(*) FROM compared)

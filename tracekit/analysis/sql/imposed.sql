-- What each rank alone cost the others in each step: how much later it came than the
-- second-latest. In a meeting all others wait for it; in any other blocking operation only if
-- somebody was still in it when the last one came (who has left has not waited).
WITH gaps AS (
  SELECT
    l.step,
    l.last_rank AS rank,
    l.last_ns - MAX(CASE WHEN m.rank <> l.last_rank THEN m.start_ns END) AS imposed
  FROM meetings m
  JOIN latest l ON l.meeting = m.meeting
  WHERE l.step BETWEEN :first AND :last
  GROUP BY l.meeting, l.step, l.last_rank, l.last_ns
),
others AS (
  SELECT
    c.step,
    c.last_rank AS rank,
    c.last_ns - MAX(CASE WHEN f.rank <> c.last_rank THEN f.start_ns END) AS imposed,
    MAX(CASE WHEN f.rank <> c.last_rank THEN f.end_ns END) AS left_ns,
    c.last_ns
  FROM flights f
  JOIN calls c ON c.call = f.call
  WHERE c.complete = 1 AND c.step BETWEEN :first AND :last AND f.blocking = 1
    AND c.direction IN ('from_root', 'to_root', 'pair')
  GROUP BY c.call, c.step, c.last_rank, c.last_ns
)
SELECT step, rank, SUM(CAST(imposed AS DOUBLE)) AS imposed
FROM (
  SELECT step, rank, imposed FROM gaps
  UNION ALL
  SELECT step, rank, imposed FROM others WHERE left_ns >= last_ns
) charged
WHERE imposed > 0
GROUP BY step, rank

-- What each rank alone cost the others in each step: how much later it came to a meeting than
-- the second-latest, and how much later than all others it came to an operation that some of
-- them were blocked in for it (the root of a broadcast, a member of a reduce, a sender).
WITH gaps AS (
  SELECT
    l.step,
    l.last_rank AS rank,
    l.last_ns - MAX(CASE WHEN m.rank <> l.last_rank THEN m.start_ns END) AS imposed
  FROM meetings m
  JOIN latest l ON l.grp = m.grp AND l.seq = m.seq AND l.op = m.op
  GROUP BY l.grp, l.seq, l.op, l.step, l.last_rank, l.last_ns
),
rooted AS (
  SELECT
    c.step,
    c.last_rank AS rank,
    c.last_ns - MAX(CASE WHEN w.rank <> c.last_rank THEN w.start_ns END) AS imposed
  FROM calls c
  JOIN waits w ON w.grp = c.grp AND w.seq = c.seq AND w.op = c.op AND w.blocking = 1
    AND (c.pair = -1 OR w.rank IN (floor(c.pair / 1048576), mod(c.pair, 1048576)))
  WHERE c.complete = 1 AND c.step BETWEEN :first AND :last
    AND ((c.direction IN ('from_root', 'pair') AND c.last_rank = c.root)
      OR (c.direction = 'to_root' AND c.last_rank <> c.root))
  GROUP BY c.grp, c.seq, c.op, c.pair, c.step, c.last_rank, c.last_ns
)
SELECT step, rank, SUM(CAST(imposed AS DOUBLE)) AS imposed
FROM (
  SELECT step, rank, imposed FROM gaps WHERE imposed > 0
  UNION ALL
  SELECT step, rank, imposed FROM rooted WHERE imposed > 0
) both_kinds
GROUP BY step, rank

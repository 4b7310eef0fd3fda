-- What each rank alone cost the others in each step: how much later it came than the
-- second-latest. In a meeting all others wait for it, once one of them stands there; in any other
-- blocking operation only if somebody was still in it when the last one came (who has left has not
-- waited). inside: the part of it in groups that tie ranks to one unit.
WITH gaps AS (
  SELECT
    l.step,
    l.last_rank AS rank,
    l.meeting AS call,
    l.last_ns - GREATEST(
      MAX(CASE WHEN m.rank <> l.last_rank THEN m.came_ns END),
      MIN(CASE WHEN m.rank <> l.last_rank THEN m.start_ns END)
    ) AS imposed
  FROM meetings m
  JOIN latest l ON l.meeting = m.meeting
  WHERE l.step BETWEEN :first AND :last
  GROUP BY l.meeting, l.step, l.last_rank, l.last_ns
  HAVING MIN(CASE WHEN m.rank <> l.last_rank THEN m.start_ns END) IS NOT NULL
),
others AS (
  SELECT
    c.step,
    c.last_rank AS rank,
    c.call,
    c.last_ns - MAX(CASE WHEN f.rank <> c.last_rank THEN f.start_ns END) AS imposed,
    MAX(CASE WHEN f.rank <> c.last_rank THEN f.end_ns END) AS left_ns,
    c.last_ns
  FROM flights f
  JOIN calls c ON c.call = f.call
  WHERE c.complete = 1 AND c.step BETWEEN :first AND :last AND f.blocking = 1
    AND c.direction IN ('from_root', 'to_root', 'pair')
  GROUP BY c.call, c.step, c.last_rank, c.last_ns
)
SELECT
  g.step,
  g.rank,
  SUM(CAST(g.imposed AS DOUBLE)) AS imposed,
  SUM(CASE WHEN t.grp IS NULL THEN 0 ELSE CAST(g.imposed AS DOUBLE) END) AS inside
FROM (
  SELECT step, rank, call, imposed FROM gaps
  UNION ALL
  SELECT step, rank, call, imposed FROM others WHERE left_ns >= last_ns
) g
LEFT JOIN calls c ON c.call = g.call
LEFT JOIN tied t ON t.grp = c.grp
WHERE g.imposed > 0
GROUP BY g.step, g.rank

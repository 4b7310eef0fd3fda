-- How much longer than its peers each rank itself worked before the meetings of each step. From
-- one meeting with peers to the next a rank works, or is blocked in other operations: in a
-- broadcast that goes through a tree, one late rank makes others late that it blocks. Own work
-- tells them apart. With :units the time in which ranks of one unit wait for each other is work of
-- the unit.
WITH points AS (
  SELECT m.rank, m.step, m.meeting, m.came_ns, p.peers
  FROM meetings m
  JOIN peers p ON p.rank = m.rank
  JOIN (
    SELECT a.meeting, b.peers
    FROM meetings a
    JOIN peers b ON b.rank = a.rank
    GROUP BY a.meeting, b.peers
    HAVING COUNT(*) > 1
  ) shared
    ON shared.meeting = m.meeting AND shared.peers = p.peers
),
blocks AS (
  SELECT
    rank, step, start_ns, end_ns, meeting, peers,
    MAX(end_ns) OVER (
      PARTITION BY rank ORDER BY start_ns NULLS LAST, end_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_ns
  FROM (
    SELECT f.rank, f.step, f.start_ns, f.end_ns, NULL AS meeting, NULL AS peers
    FROM flights f
    LEFT JOIN calls c ON c.call = f.call
    LEFT JOIN tied t ON t.grp = c.grp
    WHERE f.blocking = 1 AND (:units = 0 OR t.grp IS NULL)
    UNION ALL
    SELECT rank, step, start_ns, end_ns, NULL, NULL FROM tails
    UNION ALL
    SELECT rank, step, came_ns, came_ns, meeting, peers FROM points
  ) every_block
),
blocked AS (
  SELECT
    rank, step, start_ns, meeting, peers,
    COALESCE(
      SUM(CAST(GREATEST(0, end_ns - GREATEST(start_ns, COALESCE(before_ns, start_ns))) AS DOUBLE))
      OVER (
        PARTITION BY rank ORDER BY start_ns NULLS LAST, end_ns NULLS LAST
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ),
      0
    ) AS blocked_before
  FROM blocks
),
at_meetings AS (
  SELECT
    b.rank, b.meeting, b.peers, b.start_ns,
    CAST(b.start_ns - :origin AS DOUBLE) - b.blocked_before AS own_ns,
    CAST(h.begin_ns - :origin AS DOUBLE) AS begin_ns
  FROM blocked b
  LEFT JOIN steps h ON h.rank = b.rank AND h.step = b.step
  WHERE b.meeting IS NOT NULL
),
paces AS (
  SELECT
    rank, meeting, peers,
    own_ns - COALESCE(
      LAG(own_ns) OVER (PARTITION BY rank ORDER BY start_ns NULLS LAST, meeting NULLS LAST),
      begin_ns
    ) AS work
  FROM at_meetings
),
sums AS (
  SELECT meeting, peers, SUM(work) AS work, COUNT(work) AS ranks
  FROM paces
  GROUP BY meeting, peers
)
SELECT
  l.step,
  p.rank,
  SUM(GREATEST(0, p.work - (s.work - p.work) / NULLIF(s.ranks - 1, 0))) AS excess,
  SUM(p.work - (s.work - p.work) / NULLIF(s.ranks - 1, 0)) AS ahead
FROM paces p
JOIN sums s ON s.meeting = p.meeting AND s.peers = p.peers
JOIN latest l ON l.meeting = p.meeting
WHERE s.ranks > 1 AND p.work IS NOT NULL AND l.step BETWEEN :first AND :last
GROUP BY l.step, p.rank

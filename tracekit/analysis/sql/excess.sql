-- How much longer than its peers each rank itself worked before the meetings of each step. From
-- one meeting to the next a rank works, or is blocked in other operations: in a broadcast that
-- goes through a tree, one late rank makes others late that it blocks. Own work tells them apart.
WITH blocks AS (
  SELECT
    rank, step, start_ns, end_ns, meeting,
    MAX(end_ns) OVER (
      PARTITION BY rank ORDER BY start_ns NULLS LAST, end_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_ns
  FROM (
    SELECT f.rank, f.step, f.start_ns, f.end_ns, NULL AS meeting
    FROM flights f
    LEFT JOIN latest l ON l.meeting = f.call
    WHERE f.blocking = 1 AND l.meeting IS NULL
    UNION ALL
    SELECT rank, step, start_ns, end_ns, meeting FROM meetings
  ) every_block
),
blocked AS (
  SELECT
    rank, step, start_ns, meeting,
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
    b.rank, b.meeting, b.start_ns,
    CAST(b.start_ns - :origin AS DOUBLE) - b.blocked_before AS own_ns,
    CAST(h.begin_ns - :origin AS DOUBLE) AS begin_ns
  FROM blocked b
  LEFT JOIN steps h ON h.rank = b.rank AND h.step = b.step
  WHERE b.meeting IS NOT NULL
),
paces AS (
  SELECT
    rank, meeting,
    own_ns - COALESCE(
      LAG(own_ns) OVER (PARTITION BY rank ORDER BY start_ns NULLS LAST, meeting NULLS LAST),
      begin_ns
    ) AS work
  FROM at_meetings
),
sums AS (
  SELECT meeting, SUM(work) AS work, COUNT(work) AS ranks
  FROM paces
  GROUP BY meeting
)
SELECT
  l.step,
  p.rank,
  SUM(GREATEST(0, p.work - (s.work - p.work) / NULLIF(s.ranks - 1, 0))) AS excess,
  SUM(p.work - (s.work - p.work) / NULLIF(s.ranks - 1, 0)) AS ahead
FROM paces p
JOIN sums s ON s.meeting = p.meeting
JOIN latest l ON l.meeting = p.meeting
WHERE s.ranks > 1 AND p.work IS NOT NULL AND l.step BETWEEN :first AND :last
GROUP BY l.step, p.rank

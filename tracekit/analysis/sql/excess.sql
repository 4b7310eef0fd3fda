-- How much longer than its peers each rank itself worked before the meetings of each step. From
-- one meeting to the next a rank works, or is blocked in other operations: in a broadcast that
-- goes through a tree, one late rank makes others late that it blocks. Own work tells them apart.
WITH blocks AS (
  SELECT
    rank, start_ns, end_ns, is_meeting, grp, seq, op, step,
    MAX(end_ns) OVER (
      PARTITION BY rank ORDER BY start_ns NULLS LAST, end_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_ns
  FROM (
    SELECT w.rank, w.start_ns, w.end_ns, 0 AS is_meeting, w.grp, w.seq, w.op, w.step
    FROM waits w
    LEFT JOIN latest l ON l.grp = w.grp AND l.seq = w.seq AND l.op = w.op
    WHERE w.blocking = 1 AND l.grp IS NULL
    UNION ALL
    SELECT rank, start_ns, end_ns, 1, grp, seq, op, step FROM meetings
  ) every_block
),
blocked AS (
  SELECT
    rank, start_ns, end_ns, is_meeting, grp, seq, op, step,
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
    b.rank, b.grp, b.seq, b.op, b.start_ns,
    CAST(b.start_ns - :origin AS DOUBLE) - b.blocked_before AS own_ns,
    CAST(h.begin_ns - :origin AS DOUBLE) AS begin_ns
  FROM blocked b
  LEFT JOIN steps h ON h.rank = b.rank AND h.step = b.step
  WHERE b.is_meeting = 1
),
paces AS (
  SELECT
    rank, grp, seq, op,
    own_ns - COALESCE(
      LAG(own_ns) OVER (PARTITION BY rank ORDER BY start_ns NULLS LAST, seq NULLS LAST), begin_ns
    ) AS work
  FROM at_meetings
),
sums AS (
  SELECT grp, seq, op, SUM(work) AS work, COUNT(work) AS ranks
  FROM paces
  GROUP BY grp, seq, op
)
SELECT
  l.step,
  p.rank,
  SUM(GREATEST(0, p.work - (s.work - p.work) / NULLIF(s.ranks - 1, 0))) AS excess,
  SUM(p.work - (s.work - p.work) / NULLIF(s.ranks - 1, 0)) AS ahead
FROM paces p
JOIN sums s ON s.grp = p.grp AND s.seq = p.seq AND s.op = p.op
JOIN latest l ON l.grp = p.grp AND l.seq = p.seq AND l.op = p.op
WHERE s.ranks > 1 AND p.work IS NOT NULL AND l.step BETWEEN :first AND :last
GROUP BY l.step, p.rank

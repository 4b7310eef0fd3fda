-- What each rank alone cost the others, told by its own work. A broadcast goes through a tree of
-- ranks, so one late rank makes the ranks behind it arrive late with it. Between two meetings,
-- the work a rank did itself (time that it was not blocked) tells them apart: the one with the
-- most work is charged with what it worked longer than the second, never more than another rank
-- waited at the end of it.
WITH blocks AS (
  SELECT
    rank, start_ns, end_ns, is_meeting, grp, seq, op, step,
    MAX(end_ns) OVER (
      PARTITION BY rank ORDER BY start_ns NULLS LAST, end_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_ns
  FROM (
    SELECT rank, start_ns, end_ns, 0 AS is_meeting, grp, seq, op, step
    FROM waits w
    WHERE blocking = 1 AND NOT EXISTS (
      SELECT 1 FROM latest l WHERE l.grp = w.grp AND l.seq = w.seq AND l.op = w.op
    )
    UNION ALL
    SELECT rank, start_ns, end_ns, 1, grp, seq, op, step FROM meetings
  ) all_blocks
),
blocked AS (
  SELECT
    rank, start_ns, is_meeting, grp, seq, op, step,
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
paces AS (
  SELECT
    rank, grp, seq, op, step, start_ns,
    start_ns - blocked_before
      - LAG(start_ns - blocked_before) OVER (
        PARTITION BY rank ORDER BY start_ns NULLS LAST, seq NULLS LAST
      ) AS work
  FROM blocked
  WHERE is_meeting = 1
),
most AS (
  SELECT grp, seq, op, MAX_BY(rank, work) AS rank, MAX(work) AS work, COUNT(work) AS ranks
  FROM paces
  GROUP BY grp, seq, op
)
SELECT step, rank, SUM(GREATEST(0, LEAST(more, waited))) AS imposed
FROM (
  SELECT
    l.step, m.rank,
    m.work - MAX(CASE WHEN p.rank <> m.rank THEN p.work END) AS more,
    l.last_ns - MIN(CASE WHEN p.rank <> m.rank THEN p.start_ns END) AS waited
  FROM paces p
  JOIN most m ON m.grp = p.grp AND m.seq = p.seq AND m.op = p.op
  JOIN latest l ON l.grp = p.grp AND l.seq = p.seq AND l.op = p.op
  WHERE m.ranks > 1
  GROUP BY l.grp, l.seq, l.op, l.step, l.last_ns, m.rank, m.work
) compared
GROUP BY step, rank

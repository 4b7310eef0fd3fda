-- Who communicates how: each operation of each group on each rank, how often in its steps and with
-- how many bytes, and how often inside of a forward or a backward. Where calls are made is told of
-- the steps :first to :last, the rest of the whole run.
WITH spans_of_ranks AS (
  SELECT
    rank, step, span_id, start_ns, collective_group AS grp, collective_op AS op, peer_rank,
    group_size, collective_bytes
  FROM spans
  WHERE attempt = :attempt AND kind = 'comm' AND step IS NOT NULL AND name <> 'wait'
    AND collective_group IS NOT NULL AND collective_op IS NOT NULL
),
phases AS (
  SELECT rank, step, kind, start_ns, start_ns + duration_ns AS end_ns
  FROM spans
  WHERE attempt = :attempt AND kind IN ('forward', 'backward') AND step BETWEEN :first AND :last
),
inside AS (
  SELECT
    c.rank, c.grp, c.op,
    SUM(CASE WHEN p.kind = 'forward' THEN 1 ELSE 0 END) AS in_forward,
    SUM(CASE WHEN p.kind = 'backward' THEN 1 ELSE 0 END) AS in_backward
  FROM spans_of_ranks c
  JOIN phases p
    ON p.rank = c.rank AND p.step = c.step AND p.start_ns <= c.start_ns AND c.start_ns < p.end_ns
  WHERE c.step BETWEEN :first AND :last
  GROUP BY c.rank, c.grp, c.op
),
counted AS (
  SELECT
    rank, grp, op,
    COUNT(*) AS calls,
    SUM(CAST(COALESCE(collective_bytes, 0) AS DOUBLE)) AS bytes,
    MAX(group_size) AS group_size
  FROM spans_of_ranks
  GROUP BY rank, grp, op
)
SELECT
  c.rank, c.grp, c.op, c.calls, c.bytes, c.group_size,
  COALESCE(i.in_forward, 0) AS in_forward,
  COALESCE(i.in_backward, 0) AS in_backward
FROM counted c
LEFT JOIN inside i ON i.rank = c.rank AND i.grp = c.grp AND i.op = c.op
ORDER BY c.rank NULLS LAST, c.grp NULLS LAST, c.op NULLS LAST

-- How calls are made in the steps :first to :last: with how many bytes, and how often inside of a
-- forward or a backward.
WITH phases AS (
  SELECT rank, step, kind, start_ns, start_ns + duration_ns AS end_ns
  FROM spans
  WHERE attempt = :attempt AND kind IN ('forward', 'backward') AND step BETWEEN :first AND :last
)
SELECT
  c.rank,
  c.collective_group AS grp,
  c.collective_op AS op,
  MAX(c.collective_bytes) AS bytes,
  MAX(c.group_size) AS group_size,
  SUM(CASE WHEN p.kind = 'forward' THEN 1 ELSE 0 END) AS in_forward,
  SUM(CASE WHEN p.kind = 'backward' THEN 1 ELSE 0 END) AS in_backward
FROM spans c
LEFT JOIN phases p
  ON p.rank = c.rank AND p.step = c.step AND p.start_ns <= c.start_ns AND c.start_ns < p.end_ns
WHERE c.attempt = :attempt AND c.kind = 'comm' AND c.step BETWEEN :first AND :last
GROUP BY c.rank, c.collective_group, c.collective_op

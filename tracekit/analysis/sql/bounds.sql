-- What causality says of the clocks of two domains, an extreme a block of time: nobody leaves a
-- call before everybody has come. With d added to its times, the other domain is on the clock of
-- the first one: lower_ns <= d <= upper_ns. Only calls in which all wait for all serve.
WITH met AS (
  SELECT
    s.collective_group, s.collective_seq, s.collective_op, c.domain,
    MAX(s.start_ns) AS last_start_ns,
    MIN(s.start_ns + s.duration_ns) AS first_end_ns,
    COUNT(*) AS members,
    COUNT(DISTINCT s.rank) AS ranks
  FROM spans s
  JOIN domains c ON c.rank = s.rank
  JOIN directions d ON d.op = s.collective_op AND d.direction = 'all'
  WHERE s.attempt = :attempt AND s.kind = 'comm' AND s.name <> 'wait' AND s.clock = 'host'
    AND NOT s.is_open AND s.duration_ns >= 0
    AND s.collective_seq IS NOT NULL AND s.collective_group IS NOT NULL
  GROUP BY s.collective_group, s.collective_seq, s.collective_op, c.domain
),
pairs AS (
  SELECT
    a.domain AS one,
    b.domain AS other,
    a.last_start_ns AS time_ns,
    a.last_start_ns - b.first_end_ns AS lower_ns,
    a.first_end_ns - b.last_start_ns AS upper_ns
  FROM met a
  JOIN met b
    ON b.collective_group = a.collective_group AND b.collective_seq = a.collective_seq
    AND b.collective_op = a.collective_op AND b.domain > a.domain
  WHERE a.members = a.ranks AND b.members = b.ranks AND a.domain <= :farthest
)
SELECT
  one,
  other,
  MAX(lower_ns) AS lower_ns,
  MAX_BY(time_ns, lower_ns) AS lower_at_ns,
  MIN(upper_ns) AS upper_ns,
  MIN_BY(time_ns, upper_ns) AS upper_at_ns,
  MIN(time_ns) AS first_ns,
  MAX(time_ns) AS last_ns
FROM pairs
GROUP BY one, other, floor((time_ns - :origin) / :block_ns)

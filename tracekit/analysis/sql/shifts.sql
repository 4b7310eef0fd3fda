-- By how many steps a rank's numbering differs from the one that most ranks have: the same
-- collective should lie in the same step everywhere.
WITH calls AS (
  SELECT
    collective_group, collective_seq, collective_op,
    median(step) AS usual_step
  FROM numbered
  WHERE kind = 'comm' AND step IS NOT NULL AND collective_seq IS NOT NULL
    AND peer_rank IS NULL
  GROUP BY collective_group, collective_seq, collective_op
)
SELECT s.rank, s.step - CAST(floor(c.usual_step) AS BIGINT) AS shift, COUNT(*) AS calls
FROM numbered s
JOIN calls c
  ON c.collective_group = s.collective_group AND c.collective_seq = s.collective_seq
  AND c.collective_op = s.collective_op
WHERE s.kind = 'comm' AND s.step IS NOT NULL
GROUP BY s.rank, s.step - CAST(floor(c.usual_step) AS BIGINT)

-- Every change of the factor by which each rank scales its loss, in order.
SELECT rank, step, value, time_ns
FROM (
  SELECT
    rank, step, value, time_ns,
    LAG(value) OVER (PARTITION BY rank, name ORDER BY time_ns NULLS LAST) AS before
  FROM events
  WHERE attempt = :attempt AND name IN ('loss_scale', 'grad_scale') AND value IS NOT NULL
) scales
WHERE before IS NULL OR before <> value
ORDER BY rank NULLS LAST, time_ns NULLS LAST

-- Which events of each rank carry values that no sound training has: infinite, not a number (which
-- sorts above all numbers), or a count of such values that is not zero.
SELECT
  rank, name,
  COUNT(*) AS events,
  SUM(CASE WHEN odd THEN 1 ELSE 0 END) AS odd,
  MIN(CASE WHEN odd THEN step END) AS first_step,
  MAX(CASE WHEN odd THEN step END) AS last_step,
  MAX(step) AS end_step,
  SUM(CASE WHEN odd AND is_count THEN value END) AS total
FROM (
  SELECT
    rank, name, step, value,
    name IN ('gradient_nonfinite', 'gradient_saturated') AS is_count,
    CASE
      WHEN name IN ('gradient_nonfinite', 'gradient_saturated', 'optimizer_skipped')
      THEN COALESCE(value, 1) > 0
      ELSE value > 1.7976931348623157e308 OR value < -1.7976931348623157e308
    END AS odd
  FROM events
  WHERE attempt = :attempt
    AND name IN (
      'loss', 'grad_norm', 'gradient_nonfinite', 'gradient_saturated', 'optimizer_skipped',
      'loss_scale', 'grad_scale'
    )
) judged
GROUP BY rank, name

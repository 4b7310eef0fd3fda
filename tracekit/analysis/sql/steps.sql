-- When each rank began and ended each step.
SELECT
  rank,
  step,
  MIN(start_ns) AS begin_ns,
  MAX(end_ns) AS end_ns,
  MAX(CASE WHEN is_open THEN 1 ELSE 0 END) AS is_open,
  MAX(is_untraced) AS is_untraced,
  COUNT(*) AS times
FROM timeline
WHERE kind = 'step' AND step IS NOT NULL
GROUP BY rank, step

-- Who recorded what: one row for each attempt, rank and kind of span.
SELECT
  attempt,
  rank,
  kind,
  COUNT(*) AS spans,
  COUNT(CASE WHEN name <> 'untraced_step' THEN step END) AS step_spans,
  SUM(CASE WHEN is_open THEN 1 ELSE 0 END) AS open_spans,
  MIN(start_ns) AS first_ns,
  MAX(start_ns + duration_ns) AS last_ns,
  MIN(step) AS first_step,
  MAX(step) AS last_step,
  MAX(CASE WHEN step IS NULL THEN start_ns + duration_ns END) AS stepless_end_ns,
  MIN(run_id) AS run_id
FROM spans
GROUP BY attempt, rank, kind

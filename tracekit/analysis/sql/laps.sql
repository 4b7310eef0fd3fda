-- Each time a rank began a step, counted through: a loop that counts its steps from zero in every
-- epoch uses the same numbers again.
SELECT
  rank,
  step,
  start_ns AS begin_ns,
  LEAD(start_ns) OVER (
    PARTITION BY rank, step ORDER BY start_ns NULLS LAST, span_id NULLS LAST
  ) AS until_ns,
  ROW_NUMBER() OVER (
    PARTITION BY rank ORDER BY start_ns NULLS LAST, span_id NULLS LAST
  ) - 1 AS number
FROM timed
WHERE attempt = :attempt AND kind = 'step' AND step IS NOT NULL

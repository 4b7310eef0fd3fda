-- What was recorded as a loss under each name in each step, of the first rank that did.
SELECT name, step, MIN_BY(value, rank) AS value
FROM events
WHERE attempt = :attempt AND step IS NOT NULL AND value IS NOT NULL
  AND name LIKE '%loss%' AND name <> 'loss_scale'
GROUP BY name, step

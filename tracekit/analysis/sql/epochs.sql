-- In which step each rank began each epoch.
SELECT rank, value AS epoch, MIN(step) AS step
FROM events
WHERE attempt = :attempt AND name = 'epoch' AND value IS NOT NULL AND step IS NOT NULL
GROUP BY rank, value

-- What each rank told last of each of its numbers that never fell.
SELECT rank, name, MAX(value) AS value
FROM events
WHERE attempt = :attempt AND value IS NOT NULL AND rank IS NOT NULL
GROUP BY rank, name
HAVING MAX(value) = MAX_BY(value, time_ns) AND COUNT(*) > 1 AND MIN(value) < MAX(value)

-- What ranks counted from a time on: when each value came first and last.
SELECT rank, name, value, MIN(time_ns) AS first_ns, MAX(time_ns) AS last_ns
FROM events
WHERE attempt = :attempt AND time_ns >= :since AND value IS NOT NULL
GROUP BY rank, name, value

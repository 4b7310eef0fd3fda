-- How large the values of each event were.
SELECT name, COUNT(*) AS events, MAX(value) AS largest, MIN(value) AS smallest
FROM events
WHERE attempt = :attempt AND value IS NOT NULL
GROUP BY name

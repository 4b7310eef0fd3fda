-- How often each rank ended each kind of save, and how long the longest one took.
SELECT rank, name, COUNT(*) AS saves, MAX(duration_ns) AS longest_ns
FROM spans
WHERE attempt = :attempt AND kind = 'checkpoint' AND NOT is_open
GROUP BY rank, name

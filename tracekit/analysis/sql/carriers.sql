-- By which clock collectives were timed that a profile of the graph has shown.
SELECT clock, COUNT(*) AS calls
FROM spans
WHERE attempt = :attempt AND kind = 'comm' AND collective_op IS NOT NULL
  AND (clock = 'device' OR lane LIKE 'group:%')
GROUP BY clock

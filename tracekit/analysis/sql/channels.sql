-- Who communicates in which group: how often each operation ran on each rank inside of steps; to
-- wait for a call counts as one more.
SELECT rank, collective_group AS grp, collective_op AS op, COUNT(*) AS calls
FROM spans
WHERE attempt = :attempt AND kind = 'comm' AND step IS NOT NULL
  AND collective_group IS NOT NULL AND collective_op IS NOT NULL
GROUP BY rank, collective_group, collective_op
ORDER BY rank NULLS LAST, collective_group NULLS LAST, collective_op NULLS LAST

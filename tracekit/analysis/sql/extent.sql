-- When the ranks of the first clock began and ended, by that clock.
SELECT MIN(s.start_ns) AS first_ns, MAX(s.start_ns) AS last_ns
FROM spans s
JOIN domains c ON c.rank = s.rank
WHERE s.attempt = :attempt AND c.domain = 0

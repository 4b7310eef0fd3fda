-- The windows in which ranks looked inside of their steps.
SELECT rank, attributes
FROM events
WHERE attempt = :attempt AND name = 'profile_window'

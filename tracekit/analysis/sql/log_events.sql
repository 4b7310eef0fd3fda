-- Lines of logs that tell of something that went wrong, in the order in which they were written.
SELECT rank, name, time_ns, text, source, attributes
FROM events
WHERE attempt = :attempt AND name IN ('error', 'warning', 'timeout', 'killed')
ORDER BY time_ns NULLS LAST, rank NULLS LAST

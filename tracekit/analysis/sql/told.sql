-- Facts that tell something of a training beyond who its ranks are.
SELECT attempt, rank, name, MIN(run_id) AS run_id, MIN(time_ns) AS first_ns, MAX(time_ns) AS last_ns
FROM facts
WHERE rank IS NOT NULL
GROUP BY attempt, rank, name

-- How often each rank was the last at a meeting, in each step.
SELECT step, last_rank AS rank, COUNT(*) AS times
FROM latest
GROUP BY step, last_rank

-- What importers of logs know of ranks and of the job beside their lines.
SELECT attempt, run_id, rank, host, name, value, time_ns, source
FROM facts
WHERE name IN ('log', 'log_drift', 'log_missing', 'log_mismatch', 'log_phase', 'log_wait', 'job_event')
ORDER BY time_ns NULLS LAST, rank NULLS LAST

-- The span that each rank ended last, and the last collective it ended of each kind it is in.
SELECT rank, MAX_BY(name, end_ns) AS name, MAX_BY(step, end_ns) AS step, MAX(end_ns) AS end_ns
FROM (
  SELECT rank, name, step, start_ns + duration_ns AS end_ns
  FROM spans
  WHERE attempt = :attempt AND NOT is_open AND kind <> 'step'
) ended
GROUP BY rank

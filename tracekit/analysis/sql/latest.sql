-- Who came last to each meeting.
SELECT
  meeting,
  MIN(step) AS step,
  MIN(start_ns) AS first_ns,
  MAX(start_ns) AS last_ns,
  MAX_BY(rank, start_ns) AS last_rank
FROM meetings
GROUP BY meeting

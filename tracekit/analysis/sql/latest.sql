-- Who came last to each meeting.
SELECT
  meeting,
  MIN(step) AS step,
  MIN(came_ns) AS first_ns,
  MAX(came_ns) AS last_ns,
  MAX_BY(rank, came_ns) AS last_rank
FROM meetings
GROUP BY meeting

-- When each rank came to the meeting of each step at which most was waited for.
WITH chosen AS (
  SELECT step, MAX_BY(meeting, last_ns - first_ns) AS meeting
  FROM latest
  GROUP BY step
)
SELECT c.step, m.rank, m.start_ns
FROM meetings m
JOIN chosen c ON c.meeting = m.meeting

-- When each rank came to the meeting with its peers at which most was waited for, in each step.
WITH shared AS (
  SELECT m.meeting, p.peers
  FROM meetings m
  JOIN peers p ON p.rank = m.rank
  GROUP BY m.meeting, p.peers
  HAVING COUNT(*) > 1
),
chosen AS (
  SELECT l.step, s.peers, MAX_BY(l.meeting, l.last_ns - l.first_ns) AS meeting
  FROM latest l
  JOIN shared s ON s.meeting = l.meeting
  GROUP BY l.step, s.peers
)
SELECT c.step, m.rank, m.came_ns AS start_ns
FROM chosen c
JOIN meetings m ON m.meeting = c.meeting
JOIN peers p ON p.rank = m.rank AND p.peers = c.peers

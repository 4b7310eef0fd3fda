-- The points where ranks really meet: each collective that all members wait in, blocking or waited
-- for later, and the tail of each backward that sends buckets in the background (its number is
-- negative); once for each member, whole ones only. A rank comes at came_ns and stands in it from
-- start_ns to end_ns, or not at all (NULL).
SELECT rank, step, call AS meeting, start_ns AS came_ns, start_ns, end_ns
FROM waits
WHERE blocking = 1 AND is_wait = 0 AND complete = 1 AND direction = 'all'
UNION ALL
SELECT a.rank, a.step, a.call, a.start_ns, w.start_ns, w.end_ns
FROM waits a
JOIN (SELECT call FROM flights WHERE is_wait = 1 GROUP BY call) held ON held.call = a.call
LEFT JOIN (
  SELECT rank, call, MIN(start_ns) AS start_ns, MAX(end_ns) AS end_ns
  FROM flights
  WHERE is_wait = 1
  GROUP BY rank, call
) w
  ON w.rank = a.rank AND w.call = a.call
WHERE a.blocking = 0 AND a.complete = 1 AND a.direction = 'all'
UNION ALL
SELECT t.rank, t.step, -t.call, t.start_ns, t.start_ns, t.end_ns
FROM tails t
JOIN (
  SELECT n.call
  FROM (SELECT call, COUNT(*) AS members FROM tails GROUP BY call) n
  JOIN calls c ON c.call = n.call
  WHERE n.members + :absent >= c.group_size
) whole
  ON whole.call = t.call

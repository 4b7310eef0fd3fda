-- The points where ranks really meet: each blocking collective that all members wait in, and the
-- tail of each backward that sends buckets in the background (its number is negative); once for
-- each member, whole ones only.
SELECT rank, step, call AS meeting, start_ns, end_ns
FROM waits
WHERE blocking = 1 AND complete = 1 AND direction = 'all'
UNION ALL
SELECT t.rank, t.step, -t.call, t.start_ns, t.end_ns
FROM tails t
JOIN (
  SELECT n.call
  FROM (SELECT call, COUNT(*) AS members FROM tails GROUP BY call) n
  JOIN calls c ON c.call = n.call
  WHERE n.members + :absent >= c.group_size
) whole
  ON whole.call = t.call

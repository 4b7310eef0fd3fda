-- The points where ranks really meet: each blocking collective that all members wait in, and the
-- tail of each backward that sends buckets in the background; once for each member, whole ones
-- only.
WITH points AS (
  SELECT w.rank, w.step, w.grp, w.seq, w.op, w.start_ns, w.end_ns
  FROM waits w
  JOIN directions d ON d.op = w.op
  WHERE w.blocking = 1 AND d.direction = 'all' AND w.complete = 1
  UNION ALL
  SELECT t.rank, t.step, t.grp, t.seq, 'tail', t.start_ns, t.end_ns
  FROM tails t
  JOIN (
    SELECT grp, seq FROM tails GROUP BY grp, seq HAVING COUNT(*) + :absent >= MAX(group_size)
  ) whole
    ON whole.grp = t.grp AND whole.seq = t.seq
)
SELECT rank, step, grp, seq, op, start_ns, end_ns FROM points

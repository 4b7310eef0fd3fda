-- Of every communication: until when the rank waits for others (ready_ns) and for the
-- communicator (service_ns). What is left until end_ns is transfer.
WITH waiting AS (
  SELECT
    f.rank, f.step, f.parent_id, f.start_ns, f.end_ns, f.blocking, f.is_wait, f.call,
    c.complete, c.direction, c.step AS call_step, c.previous_end_ns,
    GREATEST(
      f.start_ns,
      LEAST(
        f.end_ns,
        COALESCE(CASE WHEN f.rank = c.root THEN c.root_ready_ns ELSE c.ready_ns END, f.start_ns)
      )
    ) AS ready_ns
  FROM flights f
  LEFT JOIN calls c ON c.call = f.call
)
SELECT
  rank, step, parent_id, start_ns, end_ns, blocking, is_wait, call, complete, direction,
  call_step, ready_ns,
  GREATEST(ready_ns, LEAST(end_ns, COALESCE(previous_end_ns, ready_ns))) AS service_ns
FROM waiting

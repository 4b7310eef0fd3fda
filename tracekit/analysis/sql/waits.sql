-- Of every communication in flights: until when the rank waits for others (ready_ns) and for the
-- communicator (service_ns). What is left until end_ns is transfer.
WITH waiting AS (
  SELECT
    f.rank, f.step, f.start_ns, f.end_ns, f.blocking,
    c.grp, c.seq, c.op, c.pair, c.complete, c.step AS call_step, c.previous_end_ns,
    GREATEST(
      f.start_ns,
      LEAST(
        f.end_ns,
        COALESCE(CASE WHEN f.rank = c.root THEN c.root_ready_ns ELSE c.ready_ns END, f.start_ns)
      )
    ) AS ready_ns
  FROM flights f
  LEFT JOIN calls c ON c.grp = f.grp AND c.seq = f.seq AND c.op = f.op AND c.pair = f.pair
)
SELECT
  rank, step, start_ns, end_ns, blocking, grp, seq, op, pair, complete, call_step, ready_ns,
  GREATEST(ready_ns, LEAST(end_ns, COALESCE(previous_end_ns, ready_ns))) AS service_ns
FROM waiting

-- Every communication of the window: until when the rank waits for others (ready_ns) and for the
-- communicator (service_ns). What is left until end_ns is transfer.
WITH spans_of_window AS (
  SELECT
    rank, step, parent_id, start_ns, end_ns, collective_group, collective_seq, collective_op, peer_rank,
    CASE WHEN collective_op IN ('send', 'recv') THEN 'p2p' ELSE collective_op END AS op,
    CASE collective_op
      WHEN 'send' THEN rank * 1048576 + peer_rank
      WHEN 'recv' THEN peer_rank * 1048576 + rank
      ELSE -1
    END AS pair,
    blocking
  FROM within
  WHERE kind = 'comm'
),
waiting AS (
  SELECT
    s.rank, s.step, s.parent_id, s.start_ns, s.end_ns, s.blocking,
    c.grp, c.seq, c.op, c.pair, c.complete, c.step AS call_step, c.previous_end_ns,
    GREATEST(
      s.start_ns,
      LEAST(
        s.end_ns,
        COALESCE(CASE WHEN s.rank = c.root THEN c.root_ready_ns ELSE c.ready_ns END, s.start_ns)
      )
    ) AS ready_ns
  FROM spans_of_window s
  LEFT JOIN calls c
    ON c.grp = s.collective_group AND c.seq = s.collective_seq AND c.op = s.op
    AND c.pair = s.pair
)
SELECT
  rank, step, parent_id, start_ns, end_ns, blocking, grp, seq, op, pair, complete, call_step, ready_ns,
  GREATEST(ready_ns, LEAST(end_ns, COALESCE(previous_end_ns, ready_ns))) AS service_ns
FROM waiting

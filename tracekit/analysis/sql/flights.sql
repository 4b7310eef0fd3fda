-- Every communication of the window, with the number of its collective.
WITH spans_of_window AS (
  SELECT
    rank, step, parent_id, start_ns, end_ns, blocking, is_wait, collective_group, collective_seq,
    CASE WHEN collective_op IN ('send', 'recv') THEN 'p2p' ELSE collective_op END AS op,
    CASE collective_op
      WHEN 'send' THEN rank * 1048576 + peer_rank
      WHEN 'recv' THEN peer_rank * 1048576 + rank
      ELSE -1
    END AS pair
  FROM within
  WHERE kind = 'comm'
)
SELECT s.rank, s.step, s.parent_id, s.start_ns, s.end_ns, s.blocking, s.is_wait, c.call
FROM spans_of_window s
LEFT JOIN calls c
  ON c.grp = s.collective_group AND c.seq = s.collective_seq AND c.op = s.op AND c.pair = s.pair

-- Every communication of the window, with the key of its collective.
SELECT
  rank, step, parent_id, start_ns, end_ns, blocking,
  collective_group AS grp,
  collective_seq AS seq,
  CASE WHEN collective_op IN ('send', 'recv') THEN 'p2p' ELSE collective_op END AS op,
  CASE collective_op
    WHEN 'send' THEN rank * 1048576 + peer_rank
    WHEN 'recv' THEN peer_rank * 1048576 + rank
    ELSE -1
  END AS pair
FROM within
WHERE kind = 'comm'

-- The spans that are looked at, where all ranks number their steps alike.
SELECT
  rank, step, kind, lane, span_id, parent_id, start_ns,
  start_ns + duration_ns AS end_ns,
  CASE WHEN launch_ns < start_ns THEN 1 ELSE 0 END AS sent_before,
  CASE WHEN lane LIKE 'group:%' OR lane LIKE 'stream:%' THEN 0 ELSE 1 END AS blocking,
  is_open, collective_op, collective_group, collective_seq, collective_bytes, group_size,
  peer_rank
FROM numbered

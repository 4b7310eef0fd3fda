-- The spans that are looked at, where all ranks number their steps alike. Communication blocks
-- what runs on its lane: a thread, or a stream that the phases are timed on. It runs beside on the
-- lane of a group, and on a stream where single kernels are known (:kernels). What runs beside has
-- spans named wait with its key for the time in which a thread stood there until it was over.
SELECT
  rank, step, kind, lane, span_id, parent_id, start_ns,
  start_ns + duration_ns AS end_ns,
  CASE WHEN launch_ns < start_ns THEN 1 ELSE 0 END AS sent_before,
  CASE
    WHEN lane LIKE 'group:%' THEN 0
    WHEN lane LIKE 'stream:%' AND :kernels = 1 THEN 0
    ELSE 1
  END AS blocking,
  CASE WHEN kind = 'comm' AND name = 'wait' THEN 1 ELSE 0 END AS is_wait,
  CASE WHEN kind = 'step' AND name = 'untraced_step' THEN 1 ELSE 0 END AS is_untraced,
  is_open, collective_op, collective_group, collective_seq, collective_bytes, group_size,
  peer_rank
FROM numbered

-- The spans that are looked at, with the step numbers of shifted ranks corrected.
SELECT
  s.rank,
  s.step - h.shift AS step,
  s.kind, s.lane, s.span_id, s.parent_id, s.start_ns,
  s.start_ns + s.duration_ns AS end_ns,
  CASE WHEN s.launch_ns < s.start_ns THEN 1 ELSE 0 END AS sent_before,
  CASE
    WHEN s.lane LIKE 'group:%' THEN 0
    WHEN s.lane LIKE 'stream:%' AND :kernels = 1 THEN 0
    ELSE 1
  END AS blocking,
  CASE WHEN s.kind = 'comm' AND s.name = 'wait' THEN 1 ELSE 0 END AS is_wait,
  CASE WHEN s.kind = 'step' AND s.name = 'untraced_step' THEN 1 ELSE 0 END AS is_untraced,
  s.is_open, s.collective_op, s.collective_group, s.collective_seq, s.collective_bytes,
  s.group_size, s.peer_rank
FROM numbered s
JOIN shifts h ON h.rank = s.rank

-- The spans of the attempt that is looked at, with steps counted through.
SELECT
  s.run_id, s.attempt, s.rank, l.number AS step, s.micro_step, s.kind, s.name, s.lane, s.clock,
  s.span_id, s.parent_id, s.start_ns, s.duration_ns, s.launch_ns, s.is_open, s.status, s.device,
  s.collective_op, s.collective_group, s.collective_seq, s.collective_bytes,
  s.collective_dtype, s.group_size, s.peer_rank, s.attributes
FROM timed s
LEFT JOIN laps l
  ON l.rank = s.rank AND l.step = s.step AND s.start_ns >= l.begin_ns
  AND (l.until_ns IS NULL OR s.start_ns < l.until_ns)
WHERE s.attempt = :attempt

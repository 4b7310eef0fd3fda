-- The spans with their times on one clock: each with the correction of its rank at its time.
SELECT
  s.run_id, s.attempt, s.rank, s.step, s.micro_step, s.kind, s.name, s.lane, s.clock,
  s.span_id, s.parent_id,
  s.start_ns + c.offset_ns
    + CAST(floor(c.drift * CAST(s.start_ns - c.base_ns AS DOUBLE)) AS BIGINT) AS start_ns,
  s.duration_ns,
  s.launch_ns + c.offset_ns
    + CAST(floor(c.drift * CAST(s.launch_ns - c.base_ns AS DOUBLE)) AS BIGINT) AS launch_ns,
  s.is_open, s.status, s.device,
  s.collective_op, s.collective_group, s.collective_seq, s.collective_bytes,
  s.collective_dtype, s.group_size, s.peer_rank, s.attributes
FROM spans s
JOIN corrections c
  ON c.rank = s.rank AND s.start_ns >= c.from_ns AND s.start_ns < c.until_ns

-- What each rank was in the middle of; not what dumps tell, which is judged by itself.
SELECT
  rank, kind, name, step, lane, span_id, parent_id, start_ns,
  start_ns + duration_ns AS end_ns,
  collective_op, collective_group, collective_seq, group_size, peer_rank
FROM spans
WHERE attempt = :attempt AND is_open AND (lane IS NULL OR lane <> 'group:flight_recorder')
ORDER BY rank NULLS LAST, start_ns NULLS LAST, span_id NULLS LAST

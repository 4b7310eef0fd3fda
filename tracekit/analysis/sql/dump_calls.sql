-- What dumps of Flight Recorder hold of the calls that matter: open ones, and those that disagree.
SELECT
  rank, collective_group, collective_seq, collective_op, peer_rank, start_ns, is_open, attributes
FROM spans
WHERE attempt = :attempt AND kind = 'comm' AND lane = 'group:flight_recorder'
ORDER BY rank NULLS LAST, start_ns NULLS LAST, span_id NULLS LAST

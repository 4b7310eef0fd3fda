-- Which ranks have the calls of one sequence number behind them.
SELECT rank, collective_group AS grp, collective_op AS op, peer_rank
FROM spans
WHERE attempt = :attempt AND kind = 'comm' AND collective_seq = :seq AND NOT is_open
  AND (lane IS NULL OR lane <> 'group:flight_recorder')
GROUP BY rank, collective_group, collective_op, peer_rank

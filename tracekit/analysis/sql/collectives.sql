-- What each operation of each group took in every :every-th step: sums over all members' calls.
SELECT
  w.grp,
  w.op,
  COUNT(DISTINCT w.step) AS steps,
  COUNT(*) AS spans,
  SUM(CAST(w.ready_ns - w.start_ns AS DOUBLE)) AS wait,
  SUM(CAST(w.service_ns - w.ready_ns AS DOUBLE)) AS queue,
  SUM(CAST(w.end_ns - w.service_ns AS DOUBLE)) AS transfer
FROM waits w
WHERE w.complete = 1 AND w.call_step = w.step AND mod(w.step, :every) = 0
  AND w.step BETWEEN :first AND :last
GROUP BY w.grp, w.op

-- What each operation of each group took: sums over all members' calls in the window. Where
-- nobody had left before the service began, the sums of arrivals and ends tell; other calls are
-- summed member by member.
WITH timed AS (
  SELECT
    call, grp, op, step, members, starts, ends, direction, first_end_ns,
    last_ns,
    GREATEST(last_ns, COALESCE(previous_end_ns, last_ns)) AS service_ns
  FROM calls
  WHERE complete = 1 AND step BETWEEN :first AND :last
),
sums AS (
  SELECT
    grp, op, step, members AS spans,
    members * CAST(last_ns - :origin AS DOUBLE) - starts AS wait,
    members * CAST(service_ns - last_ns AS DOUBLE) AS queue,
    ends - members * CAST(service_ns - :origin AS DOUBLE) AS transfer
  FROM timed
  WHERE direction = 'all' AND first_end_ns >= service_ns
  UNION ALL
  SELECT
    odd.grp, odd.op, w.step, 1,
    CAST(w.ready_ns - w.start_ns AS DOUBLE),
    CAST(w.service_ns - w.ready_ns AS DOUBLE),
    CAST(w.end_ns - w.service_ns AS DOUBLE)
  FROM waits w
  JOIN (
    SELECT call, grp, op FROM timed WHERE direction <> 'all' OR first_end_ns < service_ns
  ) odd
    ON odd.call = w.call
  WHERE w.call_step = w.step AND w.is_wait = 0
)
SELECT
  grp,
  op,
  COUNT(DISTINCT step) AS steps,
  SUM(spans) AS spans,
  SUM(wait) AS wait,
  SUM(queue) AS queue,
  SUM(transfer) AS transfer
FROM sums
GROUP BY grp, op

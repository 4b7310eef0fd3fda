-- Each step of each rank, partitioned: every instant counts once, in the first class that
-- applies. All intervals that are open at a border started before it, so between two borders each
-- family of intervals reaches from the first to the farthest end seen so far. No interval is
-- counted twice and none is cut by hand.
-- A bucket that a clean backward hides from its start to its end is left out: it can only appear
-- in the totals, and these are taken from every :every-th step.
WITH seen AS (
  SELECT w.rank, w.step, w.start_ns, w.end_ns, w.blocking, w.ready_ns, w.service_ns
  FROM waits w
  LEFT JOIN tails t
    ON t.rank = w.rank AND t.step = w.step AND t.span_id = w.parent_id AND t.clean = 1
  WHERE w.blocking = 1 OR t.rank IS NULL OR w.start_ns < t.begin_ns OR w.end_ns > t.start_ns
    OR mod(w.step, :every) = 0
),
borders AS (
  SELECT
    rank, step, start_ns AS at_ns, CAST(0 AS INTEGER) AS tile,
    CASE WHEN blocking = 1 THEN end_ns ELSE 0 END AS blocked_ns,
    ready_ns, service_ns, end_ns
  FROM seen
  UNION ALL
  SELECT rank, step, at_ns, CAST(tile * 16 + code AS INTEGER), 0, 0, 0, 0 FROM tiles
  UNION ALL
  SELECT rank, step, start_ns, 0, end_ns, 0, 0, end_ns FROM tails
),
reach AS (
  SELECT
    rank, step, at_ns,
    MAX(tile) OVER (
      PARTITION BY rank, step ORDER BY at_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS tile,
    MAX(blocked_ns) OVER (
      PARTITION BY rank, step ORDER BY at_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS blocked_ns,
    MAX(ready_ns) OVER (
      PARTITION BY rank, step ORDER BY at_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS ready_ns,
    MAX(service_ns) OVER (
      PARTITION BY rank, step ORDER BY at_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS service_ns,
    MAX(end_ns) OVER (
      PARTITION BY rank, step ORDER BY at_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS end_ns,
    LEAD(at_ns) OVER (PARTITION BY rank, step ORDER BY at_ns NULLS LAST) AS next_ns
  FROM borders
),
lengths AS (
  SELECT
    rank, step, mod(tile, 16) AS code, at_ns, blocked_ns, ready_ns, service_ns, end_ns,
    COALESCE(next_ns, end_ns) AS next_ns,
    CASE WHEN mod(tile, 16) BETWEEN 1 AND 10 THEN next_ns ELSE at_ns END AS limit_ns
  FROM reach
  WHERE COALESCE(next_ns, end_ns) > at_ns
),
pieces AS (
  SELECT
    rank, step, code, at_ns, limit_ns,
    LEAST(limit_ns, GREATEST(at_ns, blocked_ns)) AS blocked_ns,
    LEAST(limit_ns, GREATEST(at_ns, ready_ns)) AS ready_ns,
    LEAST(limit_ns, GREATEST(at_ns, service_ns)) AS service_ns,
    LEAST(limit_ns, GREATEST(at_ns, end_ns)) AS end_ns,
    CASE
      WHEN code = 4 THEN at_ns
      WHEN code <= 3 THEN LEAST(limit_ns, GREATEST(at_ns, blocked_ns))
      ELSE LEAST(limit_ns, GREATEST(at_ns, end_ns))
    END AS exposed_ns,
    CASE code
      WHEN 0 THEN LEAST(next_ns, GREATEST(at_ns, end_ns)) - at_ns
      WHEN 11 THEN next_ns - at_ns
      ELSE 0
    END AS outside
  FROM lengths
),
by_code AS (
  SELECT
    rank, step, code,
    SUM(CAST(limit_ns - at_ns AS DOUBLE)) AS length,
    SUM(CAST(blocked_ns - at_ns AS DOUBLE)) AS blocked,
    SUM(CAST(exposed_ns - at_ns AS DOUBLE)) AS exposed,
    SUM(CAST(LEAST(exposed_ns, ready_ns) - at_ns AS DOUBLE)) AS exposed_wait,
    SUM(CAST(LEAST(exposed_ns, service_ns) - at_ns AS DOUBLE)) AS exposed_unserved,
    SUM(CAST(ready_ns - at_ns AS DOUBLE)) AS wait,
    SUM(CAST(service_ns - at_ns AS DOUBLE)) AS unserved,
    SUM(CAST(end_ns - at_ns AS DOUBLE)) AS communication,
    SUM(CAST(outside AS DOUBLE)) AS outside
  FROM pieces
  GROUP BY rank, step, code
)
SELECT
  rank,
  step,
  SUM(length) AS wall,
  SUM(outside) AS outside,
  SUM(blocked) AS blocked,
  SUM(exposed_wait) AS exposed_wait,
  SUM(exposed_unserved - exposed_wait) AS exposed_queue,
  SUM(exposed - exposed_unserved) AS exposed_transfer,
  SUM(wait) AS wait_total,
  SUM(unserved - wait) AS queue_total,
  SUM(communication - unserved) AS transfer_total,
  SUM(CASE WHEN code <= 4 THEN length - exposed ELSE 0 END) AS compute,
  SUM(CASE WHEN code = 5 THEN length - exposed ELSE 0 END) AS data,
  SUM(CASE WHEN code = 6 THEN length - exposed ELSE 0 END) AS checkpoint,
  SUM(CASE WHEN code = 7 THEN length - exposed ELSE 0 END) AS eval,
  SUM(CASE WHEN code = 8 THEN length - exposed ELSE 0 END) AS compile,
  SUM(CASE WHEN code = 9 THEN length - exposed ELSE 0 END) AS gc,
  SUM(CASE WHEN code = 10 THEN length - exposed ELSE 0 END) AS other,
  SUM(CASE WHEN code = 1 THEN length - blocked ELSE 0 END) AS own_forward,
  SUM(CASE WHEN code = 2 THEN length - blocked ELSE 0 END) AS own_backward,
  SUM(CASE WHEN code = 3 THEN length - blocked ELSE 0 END) AS own_optimizer,
  SUM(CASE WHEN code = 5 THEN length - blocked ELSE 0 END) AS own_data,
  SUM(CASE WHEN code = 6 THEN length - blocked ELSE 0 END) AS own_checkpoint,
  SUM(CASE WHEN code = 7 THEN length - blocked ELSE 0 END) AS own_eval,
  SUM(CASE WHEN code = 8 THEN length - blocked ELSE 0 END) AS own_compile,
  SUM(CASE WHEN code = 9 THEN length - blocked ELSE 0 END) AS own_gc,
  SUM(CASE WHEN code IN (4, 10) THEN length - blocked ELSE 0 END) AS own_other
FROM by_code
GROUP BY rank, step

-- The end of each backward that sends buckets in the background: from when the last bucket was
-- ready (start_ns) to its return the rank does nothing but wait for them. It is known by the
-- last of these collectives. Those that a thread waited for by itself have spans for that and
-- make no tail. A backward is clean when nothing but its buckets happens before
-- that: no other phase and no blocking communication.
WITH children AS (
  SELECT
    f.rank, f.step, f.parent_id,
    MAX(CASE WHEN f.blocking = 0 AND w.call IS NULL THEN f.start_ns END) AS ready_ns,
    MAX(CASE WHEN f.blocking = 0 AND w.call IS NULL THEN f.call END) AS call,
    MIN(CASE WHEN f.blocking = 1 THEN f.start_ns END) AS first_block_ns,
    MAX(CASE WHEN f.blocking = 1 THEN f.end_ns END) AS last_block_ns
  FROM flights f
  LEFT JOIN (SELECT rank, call FROM flights WHERE is_wait = 1 GROUP BY rank, call) w
    ON :waits = 1 AND w.rank = f.rank AND w.call = f.call
  GROUP BY f.rank, f.step, f.parent_id
),
blocks AS (
  SELECT rank, step, MIN(first_block_ns) AS first_ns, MAX(last_block_ns) AS last_ns
  FROM children
  GROUP BY rank, step
),
backwards AS (
  SELECT
    b.rank, b.step, b.span_id, b.start_ns AS begin_ns, c.ready_ns AS start_ns, b.end_ns, c.call
  FROM (SELECT rank, step, span_id, start_ns, end_ns FROM within WHERE kind = 'backward') b
  JOIN children c ON c.rank = b.rank AND c.step = b.step AND c.parent_id = b.span_id
  WHERE c.ready_ns < b.end_ns
),
disturbed AS (
  SELECT b.rank, b.step, b.span_id
  FROM backwards b
  JOIN tiles t ON t.rank = b.rank AND t.step = b.step
  WHERE t.at_ns > b.begin_ns AND t.at_ns < b.start_ns
  GROUP BY b.rank, b.step, b.span_id
)
SELECT
  b.rank, b.step, b.span_id, b.begin_ns, b.start_ns, b.end_ns, b.call,
  CASE
    WHEN d.span_id IS NULL
      AND (k.first_ns IS NULL OR k.last_ns <= b.begin_ns OR k.first_ns >= b.start_ns) THEN 1
    ELSE 0
  END AS clean
FROM backwards b
LEFT JOIN disturbed d ON d.rank = b.rank AND d.step = b.step AND d.span_id = b.span_id
LEFT JOIN blocks k ON k.rank = b.rank AND k.step = b.step

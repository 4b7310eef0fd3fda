-- What the training thread is in, instant by instant: each step cut into tiles of one phase.
-- Codes: 0 outside, 1 forward, 2 backward, 3 optimizer, 4 kernel (these compute), 5 data,
-- 6 checkpoint, 7 eval, 8 compile, 9 gc, 10 other, 11 a phase outside of its step. Two packed counters say how many spans of
-- each kind are open; what interrupts a phase on its own lane takes the phase's place.
WITH phases AS (
  SELECT
    w.rank, w.step, w.lane, w.span_id, w.start_ns, w.end_ns,
    CASE w.kind
      WHEN 'step' THEN 0
      WHEN 'forward' THEN 1
      WHEN 'backward' THEN 2
      WHEN 'optimizer' THEN 3
      WHEN 'kernel' THEN 4
      WHEN 'checkpoint' THEN 6
      WHEN 'eval' THEN 7
      WHEN 'compile' THEN 8
      WHEN 'gc' THEN 9
      ELSE 5
    END AS code,
    CASE WHEN d.rank IS NULL THEN 0 ELSE 1 END AS has_kernels
  FROM within w
  LEFT JOIN devices d ON d.rank = w.rank
  WHERE w.kind IN ('step', 'forward', 'backward', 'optimizer', 'kernel', 'data', 'transfer',
    'checkpoint', 'eval', 'compile', 'gc')
),
interrupts AS (
  SELECT n.rank, n.step, n.span_id
  FROM phases n
  JOIN phases p ON p.rank = n.rank AND p.step = n.step AND p.lane = n.lane
  WHERE n.code >= 5 AND p.code BETWEEN 1 AND 3
    AND p.start_ns <= n.start_ns AND p.end_ns >= n.end_ns
  GROUP BY n.rank, n.step, n.span_id
),
weighted AS (
  SELECT
    p.rank, p.step, p.start_ns, p.end_ns,
    CASE
      WHEN p.code = 0 THEN 1
      WHEN p.code = 4 THEN 4294967296
      WHEN p.code >= 5 THEN CASE WHEN i.rank IS NULL THEN 0 ELSE 1099511627776 END
      WHEN p.has_kernels = 1 THEN 0
      WHEN p.code = 1 THEN 256
      WHEN p.code = 2 THEN 65536
      ELSE 16777216
    END AS work,
    CASE p.code
      WHEN 5 THEN 1
      WHEN 6 THEN 256
      WHEN 7 THEN 65536
      WHEN 8 THEN 16777216
      WHEN 9 THEN 4294967296
      ELSE 0
    END AS rest
  FROM phases p
  LEFT JOIN interrupts i ON i.rank = p.rank AND i.step = p.step AND i.span_id = p.span_id
    AND p.code >= 5
),
borders AS (
  SELECT rank, step, start_ns AS at_ns, CAST(work AS DOUBLE) AS work, CAST(rest AS DOUBLE) AS rest
  FROM weighted
  UNION ALL
  SELECT rank, step, end_ns, -CAST(work AS DOUBLE), -CAST(rest AS DOUBLE)
  FROM weighted
),
counted AS (
  SELECT
    rank, step, at_ns,
    SUM(work) OVER (
      PARTITION BY rank, step ORDER BY at_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS work,
    SUM(rest) OVER (
      PARTITION BY rank, step ORDER BY at_ns NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS rest,
    LEAD(at_ns) OVER (PARTITION BY rank, step ORDER BY at_ns NULLS LAST) AS next_ns,
    ROW_NUMBER() OVER (PARTITION BY rank, step ORDER BY at_ns NULLS LAST) AS tile
  FROM borders
)
SELECT
  rank, step, at_ns, tile,
  CASE
    WHEN mod(work, 256) = 0 THEN CASE WHEN work > 0 OR rest > 0 THEN 11 ELSE 0 END
    WHEN mod(floor(work / 4294967296), 256) > 0 THEN 4
    WHEN work < 1099511627776 AND mod(floor(work / 65536), 256) > 0 THEN 2
    WHEN work < 1099511627776 AND mod(floor(work / 16777216), 256) > 0 THEN 3
    WHEN work < 1099511627776 AND mod(floor(work / 256), 256) > 0 THEN 1
    WHEN mod(rest, 256) > 0 THEN 5
    WHEN mod(floor(rest / 256), 256) > 0 THEN 6
    WHEN mod(floor(rest / 65536), 256) > 0 THEN 7
    WHEN mod(floor(rest / 16777216), 256) > 0 THEN 8
    WHEN rest >= 4294967296 THEN 9
    ELSE 10
  END AS code
FROM counted
WHERE next_ns > at_ns OR next_ns IS NULL

-- What the training thread is in, instant by instant: each step cut into tiles of one phase.
-- Codes: 0 outside, 1 forward, 2 backward, 3 optimizer, 4 kernel (these compute), 5 data,
-- 6 checkpoint, 7 eval, 8 compile, 9 gc, 10 other, 11 a phase outside of its step. Two packed counters say how many spans of
-- each kind are open; what interrupts a phase on its own lane takes the phase's place.
WITH phases AS (
  SELECT
    w.rank, w.step, w.kind, w.start_ns, w.end_ns,
    CASE
      WHEN w.kind = 'kernel' THEN 4
      WHEN w.kind = 'step' THEN 0
      WHEN d.rank IS NOT NULL AND w.kind IN ('forward', 'backward', 'optimizer') THEN -1
      WHEN w.kind = 'forward' THEN 1
      WHEN w.kind = 'backward' THEN 2
      WHEN w.kind = 'optimizer' THEN 3
      WHEN w.kind IN ('data', 'transfer') THEN 5
      WHEN w.kind = 'checkpoint' THEN 6
      WHEN w.kind = 'eval' THEN 7
      WHEN w.kind = 'compile' THEN 8
      ELSE 9
    END AS code,
    MAX(CASE WHEN w.kind IN ('forward', 'backward', 'optimizer') THEN w.end_ns ELSE 0 END) OVER (
      PARTITION BY w.rank, w.step, w.lane
      ORDER BY w.start_ns NULLS LAST, w.end_ns DESC NULLS LAST,
        CASE WHEN w.kind IN ('forward', 'backward', 'optimizer') THEN 0 ELSE 1 END NULLS LAST
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS phase_end_ns
  FROM within w
  LEFT JOIN devices d ON d.rank = w.rank
  WHERE w.kind IN ('step', 'forward', 'backward', 'optimizer', 'kernel', 'data', 'transfer',
    'checkpoint', 'eval', 'compile', 'gc')
),
weighted AS (
  SELECT
    rank, step, start_ns, end_ns,
    CASE code
      WHEN 0 THEN 1
      WHEN 1 THEN 256
      WHEN 2 THEN 65536
      WHEN 3 THEN 16777216
      WHEN 4 THEN 4294967296
      WHEN -1 THEN 0
      ELSE CASE WHEN phase_end_ns >= end_ns THEN 1099511627776 ELSE 0 END
    END AS work,
    CASE code
      WHEN 5 THEN 1
      WHEN 6 THEN 256
      WHEN 7 THEN 65536
      WHEN 8 THEN 16777216
      WHEN 9 THEN 4294967296
      ELSE 0
    END AS rest
  FROM phases
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

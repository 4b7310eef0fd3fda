-- The end of each backward that sends buckets in the background: from when the last bucket was
-- ready (start_ns) to its return the rank does nothing but wait for them. A backward is clean
-- when nothing but its buckets happens before that: no other phase and no blocking communication.
WITH grouped AS (
  SELECT
    rank, step, parent_id,
    CASE WHEN lane LIKE 'group:%' OR lane LIKE 'stream:%' THEN 0 ELSE 1 END AS blocking,
    MIN(start_ns) AS first_ns,
    MAX(start_ns) AS ready_ns,
    MAX(end_ns) AS end_ns,
    MAX(collective_seq) AS seq,
    MIN(collective_group) AS grp,
    MAX(group_size) AS group_size
  FROM within
  WHERE kind = 'comm'
  GROUP BY
    rank, step, parent_id,
    CASE WHEN lane LIKE 'group:%' OR lane LIKE 'stream:%' THEN 0 ELSE 1 END
),
blocks AS (
  SELECT rank, step, MIN(first_ns) AS first_ns, MAX(end_ns) AS end_ns
  FROM grouped
  WHERE blocking = 1
  GROUP BY rank, step
),
backwards AS (
  SELECT
    b.rank, b.step, b.span_id, b.start_ns AS begin_ns, g.ready_ns AS start_ns, b.end_ns, g.seq,
    g.grp, g.group_size
  FROM grouped g
  JOIN (SELECT rank, step, span_id, start_ns, end_ns FROM within WHERE kind = 'backward') b
    ON b.rank = g.rank AND b.step = g.step AND b.span_id = g.parent_id
  WHERE g.blocking = 0 AND g.ready_ns < b.end_ns
),
disturbed AS (
  SELECT b.rank, b.step, b.span_id
  FROM backwards b
  JOIN tiles t ON t.rank = b.rank AND t.step = b.step
  WHERE t.at_ns > b.begin_ns AND t.at_ns < b.start_ns
  GROUP BY b.rank, b.step, b.span_id
)
SELECT
  b.rank, b.step, b.span_id, b.begin_ns, b.start_ns, b.end_ns, b.seq, b.grp, b.group_size,
  CASE
    WHEN d.span_id IS NULL
      AND (k.rank IS NULL OR k.end_ns <= b.begin_ns OR k.first_ns >= b.start_ns) THEN 1
    ELSE 0
  END AS clean
FROM backwards b
LEFT JOIN disturbed d ON d.rank = b.rank AND d.step = b.step AND d.span_id = b.span_id
LEFT JOIN blocks k ON k.rank = b.rank AND k.step = b.step

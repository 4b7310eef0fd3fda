-- When each rank came to the meeting of each step at which most was waited for.
WITH chosen AS (
  SELECT
    step,
    MAX_BY(grp, last_ns - first_ns) AS grp,
    MAX_BY(seq, last_ns - first_ns) AS seq,
    MAX_BY(op, last_ns - first_ns) AS op
  FROM latest
  GROUP BY step
)
SELECT c.step, m.rank, m.start_ns
FROM meetings m
JOIN chosen c ON c.grp = m.grp AND c.seq = m.seq AND c.op = m.op

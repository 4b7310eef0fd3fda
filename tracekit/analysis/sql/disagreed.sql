-- The last call of each rank in each group that did not end well: open, or with an error.
SELECT rank, grp, seq, op, name, bytes, dtype, is_open
FROM (
  SELECT
    rank, collective_group AS grp, collective_seq AS seq, collective_op AS op, name,
    collective_bytes AS bytes, collective_dtype AS dtype, is_open,
    ROW_NUMBER() OVER (
      PARTITION BY rank, collective_group ORDER BY start_ns DESC NULLS LAST, span_id DESC NULLS LAST
    ) AS place
  FROM spans
  WHERE attempt = :attempt AND kind = 'comm' AND name <> 'wait'
    AND (is_open OR status = 'error')
    AND collective_seq IS NOT NULL AND collective_group IS NOT NULL
    AND collective_op IS NOT NULL AND collective_op NOT IN ('send', 'recv')
    AND (lane IS NULL OR lane <> 'group:flight_recorder')
) broken
WHERE place = 1
ORDER BY grp NULLS LAST, seq NULLS LAST, op NULLS LAST, rank NULLS LAST

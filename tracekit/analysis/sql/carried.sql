-- Spans that reach into a step other than the one they are recorded under (steps usually tile, so
-- there are few): once more for each step they reach into.
WITH leaving AS (
  SELECT t.*
  FROM timeline t
  LEFT JOIN steps h ON h.rank = t.rank AND h.step = t.step
  WHERE t.kind <> 'step'
    AND (h.step IS NULL OR t.start_ns < h.begin_ns OR t.end_ns > h.end_ns)
)
SELECT
  l.rank,
  h.step,
  l.kind, l.lane, l.span_id, l.parent_id, l.start_ns, l.end_ns, l.sent_before, l.blocking,
  l.is_wait, l.is_untraced, l.is_open, l.collective_op, l.collective_group, l.collective_seq,
  l.collective_bytes, l.group_size, l.peer_rank
FROM leaving l
JOIN steps h ON h.rank = l.rank
WHERE h.begin_ns < l.end_ns AND h.end_ns > l.start_ns
  AND (l.step IS NULL OR h.step <> l.step)

-- How long spans like one that is open took each rank, at the longest.
SELECT ended.rank AS rank, MAX(ended.duration_ns) AS longest_ns
FROM spans ended
JOIN (
  SELECT kind, name FROM spans WHERE attempt = :attempt AND rank = :rank AND span_id = :span
) opened ON ended.kind = opened.kind AND ended.name = opened.name
WHERE ended.attempt = :attempt AND NOT ended.is_open
GROUP BY ended.rank

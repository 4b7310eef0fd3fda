-- Which operations ran in which groups, with how many ranks, how often and with how many bytes.
SELECT
  grp,
  op,
  MAX(direction) AS direction,
  MAX(group_size) AS group_size,
  MAX(sent_before) AS sent_before,
  SUM(complete) AS complete,
  COUNT(*) AS calls,
  SUM(CASE WHEN complete = 1 THEN CAST(bytes AS DOUBLE) ELSE 0 END) AS bytes
FROM calls
WHERE step BETWEEN :first AND :last
GROUP BY grp, op

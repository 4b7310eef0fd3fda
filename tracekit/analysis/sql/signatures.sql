-- Which collectives each step has: steps of equal work have equal signatures. A collective that
-- its members count to different steps shows that they number their steps differently.
SELECT
  step,
  COUNT(*) AS calls,
  SUM(CAST(COALESCE(bytes, 0) AS DOUBLE)) AS bytes,
  SUM(CASE WHEN members + :absent < group_size THEN 1 ELSE 0 END) AS incomplete,
  SUM(CASE WHEN last_step <> step THEN 1 ELSE 0 END) AS shifted
FROM calls
WHERE step BETWEEN :first AND :last
GROUP BY step

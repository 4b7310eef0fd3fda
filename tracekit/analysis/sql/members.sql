-- Which ranks took part in the collectives of each group.
SELECT grp, rank
FROM waits
WHERE grp IS NOT NULL
GROUP BY grp, rank

-- Which ranks took part in the collectives of each group.
SELECT c.grp, f.rank
FROM flights f
JOIN calls c ON c.call = f.call
GROUP BY c.grp, f.rank

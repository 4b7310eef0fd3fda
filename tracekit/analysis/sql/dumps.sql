-- What each dump of Flight Recorder says of its rank, and the groups that dumps tell of.
SELECT rank, name, value
FROM facts
WHERE attempt = :attempt AND name IN ('dump', 'group', 'dump_group')
ORDER BY name NULLS LAST, rank NULLS LAST

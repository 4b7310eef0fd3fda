-- The spans of the attempt that is looked at.
SELECT * FROM spans WHERE attempt = :attempt

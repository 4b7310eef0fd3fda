-- The spans of the attempt that is looked at.
SELECT * FROM timed WHERE attempt = :attempt

-- The communications that the partition needs. A bucket that a clean backward hides from its
-- start to its end can only appear in the totals, and these are taken from every :every-th step.
SELECT c.*
FROM communications c
LEFT JOIN tails t
  ON t.rank = c.rank AND t.step = c.step AND t.span_id = c.parent_id AND t.clean = 1
WHERE c.blocking = 1 OR t.rank IS NULL OR c.start_ns < t.begin_ns OR c.end_ns > t.start_ns
  OR mod(c.step, :every) = 0

-- All spans of the steps of one window and of the step before it, those that are carried into
-- them included.
SELECT * FROM timeline WHERE step BETWEEN :first - 1 AND :last
UNION ALL
SELECT * FROM carried WHERE step BETWEEN :first - 1 AND :last

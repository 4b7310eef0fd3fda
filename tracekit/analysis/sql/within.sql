-- All spans of the steps of one window, those that are carried into them included.
SELECT * FROM timeline WHERE step BETWEEN :first AND :last
UNION ALL
SELECT * FROM carried WHERE step BETWEEN :first AND :last

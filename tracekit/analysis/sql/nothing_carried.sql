-- No spans that reach into other steps: where steps tile there are none.
SELECT * FROM timeline WHERE rank < 0

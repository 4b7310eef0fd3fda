-- What was recorded of loss and gradients in a few steps.
SELECT rank, name, step, value, attributes
FROM events
WHERE attempt = :attempt AND step BETWEEN :first AND :last
  AND name IN ('loss', 'grad_norm', 'gradient_nonfinite', 'optimizer_skipped')

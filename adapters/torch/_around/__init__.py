"""What happens around the steps: loss, rates, scale, norms, memory, copies, files, input."""

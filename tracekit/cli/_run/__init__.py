"""``tracekit run``: somebody's script, run as Python would run it, and recorded."""

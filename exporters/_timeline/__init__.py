"""A run as a timeline: processes, tracks and what stands on them."""

"""Which ranks do the same work, told or inferred from who communicates with whom."""

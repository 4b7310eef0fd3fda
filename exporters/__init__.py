"""What carries a run's spans out, in the formats of other tools."""

"""What every verdict rests on: small tables, facts, clocks, steps, and how ranks ended."""

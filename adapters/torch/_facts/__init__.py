"""What is told once of a run: versions, seeds, models, roles, and who the process is."""

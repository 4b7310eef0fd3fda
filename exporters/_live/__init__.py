"""A run that is under way: what is new of it, and which steps are chosen."""

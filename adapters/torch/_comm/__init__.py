"""What ranks say to each other: every call of a process group as a span, numbered and timed."""

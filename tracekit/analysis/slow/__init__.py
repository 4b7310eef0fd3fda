"""Who makes the others wait, since when, because of what."""

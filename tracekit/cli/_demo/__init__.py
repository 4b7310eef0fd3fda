"""The demo: real processes that train, a real fault in one of them, and what becomes of it."""

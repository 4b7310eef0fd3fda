"""How ``tracekit export`` writes each kind of target."""

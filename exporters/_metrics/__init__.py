"""Numbers of a run as metrics of OpenTelemetry."""

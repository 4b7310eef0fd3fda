"""A run as OpenTelemetry has it: names, spans, resources, traces, and their encodings."""

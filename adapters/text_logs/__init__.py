"""Text logs of any kind: c10d's watchdog, torchelastic, kernel, schedulers, tracebacks, and the
lines of ranks under whatever prefix."""

from tracekit.adapters.text_logs._importer import TextLogs, read_logs, recognise

__all__ = ["TextLogs", "read_logs", "recognise"]

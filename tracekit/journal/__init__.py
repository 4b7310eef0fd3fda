"""The mmap file: its format, its writer and its reader."""

from tracekit.journal.writer import JournalWriter

__all__ = ["JournalWriter"]

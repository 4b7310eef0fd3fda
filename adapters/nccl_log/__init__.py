"""NCCL's debug log: who was in which communicator, over which network, and what went wrong."""

from tracekit.adapters.nccl_log._log import (
    NcclLog,
    NcclLogImporter,
    read_logs,
    recognize,
    tables_of_run,
)
from tracekit.adapters.nccl_log._notices import peer_of
from tracekit.adapters.nccl_log._table import Meaning, meaning_of_warning

__all__ = [
    "Meaning",
    "NcclLog",
    "NcclLogImporter",
    "meaning_of_warning",
    "peer_of",
    "read_logs",
    "recognize",
    "tables_of_run",
]

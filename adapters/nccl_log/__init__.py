"""NCCL's debug log: who was in which communicator, over which network, and what went wrong."""

from tracekit.adapters.nccl_log._log import (
    NcclLog,
    NcclLogImporter,
    read_logs,
    recognize,
    tables_of_run,
)

__all__ = ["NcclLog", "NcclLogImporter", "read_logs", "recognize", "tables_of_run"]

"""NCCL's RAS: what its client prints about a running job, as text, as JSON and while it watches."""

from tracekit.adapters.nccl_ras._importer import NcclRasImporter, read_looks, recognize

__all__ = ["NcclRasImporter", "read_looks", "recognize"]

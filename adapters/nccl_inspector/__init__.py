"""NCCL's Inspector: how long each collective took on each rank, as its plug-in writes it."""

from tracekit.adapters.nccl_inspector._importer import NcclInspectorImporter, recognize

__all__ = ["NcclInspectorImporter", "recognize"]

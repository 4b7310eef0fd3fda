"""Reads the dumps of PyTorch's Flight Recorder, pickle or JSON, without PyTorch."""

from tracekit.adapters.flight_recorder._importer import FlightRecorderImporter, tables_of_run

__all__ = ["FlightRecorderImporter", "tables_of_run"]

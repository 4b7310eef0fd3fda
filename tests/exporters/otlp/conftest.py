"""The real servers, one of each for all tests of this folder."""

from __future__ import annotations

from tests.exporters.otlp.servers import phoenix, rotel

__all__ = ["phoenix", "rotel"]

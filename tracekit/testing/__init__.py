"""What tests of tracekit and of its plug-ins need: a clock to turn, and runs made to order."""

from tracekit.testing.big import big_run, write_big_run
from tracekit.testing.builder import RunBuilder
from tracekit.testing.clock import FakeClock
from tracekit.testing.parallel import ParallelBuilder

__all__ = ["FakeClock", "ParallelBuilder", "RunBuilder", "big_run", "write_big_run"]

"""Perfetto's own format, TrackEvent protobuf: exact nanoseconds, and arrows tied to spans."""

from __future__ import annotations

from dataclasses import replace
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

from tracekit.dataset import Run
from tracekit.exporters._records import Choice
from tracekit.exporters._timeline.archive import Archive
from tracekit.exporters._timeline.manifest import MANIFEST, manifest, member
from tracekit.exporters._timeline.timeline import Timeline
from tracekit.exporters._timeline.track_events import TrackEvents, need_messages

__all__ = ["Choice", "Timeline", "export", "export_per_rank"]

_IN_MEMORY = 1 << 24
"""Bytes of one rank that are held in memory; more of them wait in a temporary file."""


def export(run: Run, file: BinaryIO, choice: Choice | None = None) -> Timeline:
    """Write the chosen part of a run's last attempt; returns what was written.

    Raises ``UsageError``, before anything is written, where it is too much for a viewer, and
    ``MissingDependency`` without the extra ``perfetto``.
    """
    need_messages()
    timeline = Timeline(run, choice)
    TrackEvents(timeline).write(file)
    return timeline


def export_per_rank(run: Run, file: BinaryIO, choice: Choice | None = None) -> Timeline:
    """Write a TAR with a trace of each rank and the manifest that puts them on one timeline.

    The file is only written to, never sought in, and the same run gives the same bytes. There
    are no arrows: Perfetto follows them within one file alone (``flow_tracker`` in google/perfetto
    ``src/trace_processor/types/trace_processor_context.h`` is one a trace and machine). It reads
    such a TAR from v58 on. Raises what ``export`` raises.
    """
    need_messages()
    timeline = Timeline(run, replace(choice or Choice(), max_arrows=0))
    events, archive = TrackEvents(timeline), Archive(file)
    archive.add_bytes(MANIFEST, manifest(timeline))
    for process in timeline.processes:
        with SpooledTemporaryFile(_IN_MEMORY) as spool:
            whole = cast(BinaryIO, spool)
            events.write(whole, process)
            archive.add(member(process), whole)
    archive.close()
    return timeline

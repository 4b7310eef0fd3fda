"""Perfetto's TrackEvent protobuf: the packets of a timeline, or of one rank of it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, BinaryIO

from tracekit.errors import MissingDependency
from tracekit.exporters._timeline.timeline import Process, Slice, Timeline, Track

__all__ = ["TrackEvents", "need_messages"]

_BATCH = 1 << 11
_SEQUENCE = 1
_CLEARED, _NEEDED = 1, 2
"""Flags: the state of the sequence begins here; it is needed to read a packet."""
_PROCESSES, _TRACKS, _COUNTERS = 1 << 40, 2 << 40, 3 << 40
_LARGEST = (1 << 63) - 1


class TrackEvents:
    """Writes a timeline. Raises ``MissingDependency`` without the extra ``perfetto``."""

    def __init__(self, timeline: Timeline) -> None:
        self._messages = need_messages()
        self._timeline = timeline
        by_rank = groupby(timeline.tracks, key=lambda track: track.process.rank)
        self._tracks = {rank: list(tracks) for rank, tracks in by_rank}
        # What goes into one trace processor, from however many files, has numbers of its own.
        self._counters: dict[tuple[int, str], int] = {}

    def write(self, file: BinaryIO, process: Process | None = None) -> None:
        """Write a whole trace, of everything or of one rank."""
        packets = _Packets(file, self._messages)
        for one in self._timeline.processes if process is None else [process]:
            self._describe(packets, one)
        rank = None if process is None else process.rank
        self._write_slices(packets, rank)
        self._write_arrivals(packets)
        self._write_points(packets, rank)
        packets.flush()

    def _describe(self, packets: _Packets, process: Process) -> None:
        descriptor = packets.add().track_descriptor
        descriptor.uuid = _PROCESSES + process.pid
        descriptor.process.pid = process.pid
        descriptor.process.process_name = process.name
        for track in self._tracks.get(process.rank, ()):
            descriptor = packets.add().track_descriptor
            descriptor.uuid = _TRACKS + track.tid
            descriptor.parent_uuid = _PROCESSES + process.pid
            descriptor.thread.pid = process.pid
            descriptor.thread.tid = track.tid
            descriptor.thread.thread_name = track.name

    def _write_slices(self, packets: _Packets, rank: int | None) -> None:
        """Begins and ends, on each track in the order of time, an inner end before an outer one."""
        leaving: dict[int, list[int]] = {}
        for arrow in self._timeline.arrows:
            leaving.setdefault(arrow.source, []).append(arrow.id)
        inside: dict[Track, list[Slice]] = {}
        types = packets.types

        def end(one: Slice) -> None:
            packets.event(types.TYPE_SLICE_END, _TRACKS + one.track.tid, one.end_ns)

        for one in self._timeline.slices(rank):
            stack = inside.setdefault(one.track, [])
            while stack and stack[-1].end_ns <= one.start_ns:
                end(stack.pop())
            stack.append(one)
            packet = packets.event(types.TYPE_SLICE_BEGIN, _TRACKS + one.track.tid, one.start_ns)
            packets.call(packet, one.name, one.kind, one.args)
            packet.track_event.flow_ids.extend(leaving.get(one.row, ()))
        for stack in inside.values():
            while stack:
                end(stack.pop())

    def _write_arrivals(self, packets: _Packets) -> None:
        """The ends of the arrows: marks in those who waited, when the one waited for came.

        Whatever is said, Perfetto lets an arrow begin at the slice that began first (``End`` in
        google/perfetto ``src/trace_processor/importers/common/flow_tracker.cc``), and who waits
        began before the one that is waited for. The mark did not; of equal times the first in the
        file counts, and all slices stand before the marks.
        """
        for arrow in self._timeline.arrows:
            source = self._timeline.track_of(arrow.source).process
            uuid = _TRACKS + self._timeline.track_of(arrow.target).tid
            packet = packets.event(packets.types.TYPE_INSTANT, uuid, arrow.time_ns)
            packets.call(packet, f"rank {source.rank} came", "wait", {})
            packet.track_event.terminating_flow_ids.append(arrow.id)

    def _write_points(self, packets: _Packets, rank: int | None) -> None:
        for point in self._timeline.counters(rank):
            key = point.process.pid, point.name
            uuid = self._counters.get(key)
            if uuid is None:
                uuid = self._counters[key] = _COUNTERS + len(self._counters) + 1
                descriptor = packets.add().track_descriptor
                descriptor.uuid = uuid
                descriptor.parent_uuid = _PROCESSES + point.process.pid
                descriptor.name = point.name
                descriptor.counter.SetInParent()
            packet = packets.event(packets.types.TYPE_COUNTER, uuid, point.time_ns)
            packet.track_event.double_counter_value = point.value
        for event in self._timeline.instants(rank):
            uuid = _TRACKS + event.track.tid
            packet = packets.event(packets.types.TYPE_INSTANT, uuid, event.time_ns)
            packets.call(packet, event.name, "event", event.args)


def need_messages() -> Any:
    """The messages of the format. Raises ``MissingDependency`` without the extra ``perfetto``."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise MissingDependency("perfetto", "perfetto") from error
    return perfetto_trace_pb2


class _Packets:
    """The packets of one sequence; a text is written once, then its number stands for it."""

    def __init__(self, file: BinaryIO, protos: Any) -> None:
        self._file, self._new = file, protos.Trace
        self._trace = protos.Trace()
        self.types = protos.TrackEvent
        self._known: dict[str, dict[str, int]] = {}
        self._flags = _CLEARED | _NEEDED

    def add(self) -> Any:
        """A new packet."""
        if len(self._trace.packet) >= _BATCH:
            self.flush()
        packet = self._trace.packet.add(
            trusted_packet_sequence_id=_SEQUENCE, sequence_flags=self._flags
        )
        self._flags = _NEEDED
        return packet

    def event(self, type_: int, track: int, time_ns: int) -> Any:
        """A new packet with an event on a track."""
        packet = self.add()
        packet.timestamp = max(0, time_ns)
        packet.track_event.type = type_
        packet.track_event.track_uuid = track
        return packet

    def number(self, packet: Any, table: str, text: str) -> int:
        """The number that stands for a text from this packet on."""
        known = self._known.setdefault(table, {})
        number = known.get(text)
        if number is None:
            number = known[text] = len(known) + 1
            entry = getattr(packet.interned_data, table).add()
            entry.iid, entry.name = number, text
        return number

    def call(self, packet: Any, name: str, kind: str, args: Mapping[str, Any]) -> None:
        """Say what the event of a packet is."""
        event = packet.track_event
        event.name_iid = self.number(packet, "event_names", name)
        event.category_iids.append(self.number(packet, "event_categories", kind))
        annotate = event.debug_annotations.add
        for key, value in args.items():
            number = self.number(packet, "debug_annotation_names", key)
            if type(value) is dict:
                entries = annotate(name_iid=number).dict_entries
                for name_inside, item in value.items():
                    entries.add(name=name_inside, **_valued(item))
            else:
                annotate(name_iid=number, **_valued(value))

    def flush(self) -> None:
        """Write what is there. Pieces of a trace written one after another are a trace."""
        self._file.write(self._trace.SerializeToString())
        self._trace = self._new()  # a cleared one would keep its memory


def _valued(value: Any) -> dict[str, Any]:
    """A value as the field of an annotation that holds its type."""
    if type(value) is int:
        return {"int_value" if value <= _LARGEST else "uint_value": value}
    if type(value) is float:
        return {"double_value": value}
    if type(value) is bool:
        return {"bool_value": value}
    return {"string_value": "null" if value is None else str(value)}

"""A Perfetto trace read back as a viewer reads it."""

from __future__ import annotations

from typing import Any

import pytest


def packets_in(data: bytes) -> list[Any]:
    """The packets of a trace."""
    pytest.importorskip("perfetto")
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    trace = protos.Trace()
    trace.ParseFromString(data)
    return list(trace.packet)


class Reader:
    """What a viewer makes of the packets of one sequence."""

    def __init__(self, packets: list[Any]) -> None:
        assert packets[0].sequence_flags == 3
        assert {packet.sequence_flags for packet in packets[1:]} <= {2}
        self.tracks: dict[int, str] = {}
        self.spans: list[tuple[int, str, int, int, dict[str, Any]]] = []
        self.counters: list[tuple[str, int, float]] = []
        self.instants: list[tuple[str, dict[str, Any]]] = []
        self.flows: dict[int, list[Any]] = {}
        self.marks: list[tuple[int, str]] = []
        self.lanes: dict[int, list[tuple[int, int]]] = {}
        self._parents: dict[int, int] = {}
        self._texts: dict[tuple[str, int], str] = {}
        self._open: dict[int, list[tuple[str, int, dict[str, Any]]]] = {}
        events = []
        for packet in packets:
            assert packet.trusted_packet_sequence_id == 1
            for table in ("event_names", "event_categories", "debug_annotation_names"):
                for entry in getattr(packet.interned_data, table):
                    assert (table, entry.iid) not in self._texts
                    self._texts[table, entry.iid] = entry.name
            if packet.HasField("track_descriptor"):
                self._describe(packet.track_descriptor)
            else:
                events.append((packet.timestamp, self._read(packet.track_event)))
        # Texts are looked up in the order of the file; events are then put into that of time.
        for time, event in sorted(events, key=lambda one: one[0]):
            self._take(time, *event)
        assert not any(self._open.values())

    def _describe(self, track: Any) -> None:
        assert track.uuid not in self.tracks
        if track.HasField("process"):
            name = track.process.process_name
        else:
            assert track.parent_uuid in self.tracks
            self._parents[track.uuid] = track.parent_uuid
            name = track.name or track.thread.thread_name
        self.tracks[track.uuid] = name

    def _read(self, event: Any) -> tuple[Any, int, str, dict[str, Any]]:
        """An event, the rank it belongs to, its name and arguments."""
        rank = int(self.tracks[self._parents[event.track_uuid]].split()[1])
        args = {
            self._texts["debug_annotation_names", one.name_iid]: self._value(one)
            for one in event.debug_annotations
        }
        named = event.type in (event.TYPE_SLICE_BEGIN, event.TYPE_INSTANT)
        assert not named or self._texts["event_categories", event.category_iids[0]]
        return event, rank, self._texts["event_names", event.name_iid] if named else "", args

    def _take(self, time: int, event: Any, rank: int, name: str, args: dict[str, Any]) -> None:
        inside = self._open.setdefault(event.track_uuid, [])
        if event.type == event.TYPE_COUNTER:
            self.counters.append((self.tracks[event.track_uuid], rank, event.double_counter_value))
        elif event.type == event.TYPE_INSTANT and event.terminating_flow_ids:
            (flow,) = event.terminating_flow_ids
            ((begin, _, _),) = self.flows[flow]
            # Viewers turn an arrow around whose end began before its beginning.
            assert begin <= time
            self.flows[flow].append((time, rank, inside[-1][0]))
            self.marks.append((rank, name))
        elif event.type == event.TYPE_INSTANT:
            self.instants.append((name, args))
        elif event.type == event.TYPE_SLICE_BEGIN:
            inside.append((name, time, args))
            for flow in event.flow_ids:
                assert flow not in self.flows
                self.flows[flow] = [(time, rank, name)]
        else:
            assert not event.terminating_flow_ids
            name, start, args = inside.pop()
            self.spans.append((rank, name, start, time, args))
            self.lanes.setdefault(event.track_uuid, []).append((start, time))

    def _value(self, one: Any) -> Any:
        if one.dict_entries:
            return {entry.name: self._value(entry) for entry in one.dict_entries}
        return getattr(one, one.WhichOneof("value"))

"""From what logs said to rows of tracekit's tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tracekit.adapters.text_logs._job import DEFAULT_GROUP, Ended, Job, JobEvent
from tracekit.adapters.text_logs._patterns import table
from tracekit.adapters.text_logs._rank_log import Line, RankLog, Trouble, Wait
from tracekit.dataset import EVENTS, SPANS
from tracekit.dataset.facts import FactRow, table_of

__all__ = ["JobRows"]

_MS = 1_000_000
_KEPT = 200
_SIGNALS = {134: 6, 135: 7, 137: 9, 139: 11, 143: 15, 241: 15, 245: 11, 247: 9, 250: 6}
"""Exit codes by which shells and containers tell of a signal."""
_FATAL_ROLES = ("cause", "memory", "mismatch", "missing", "wait", "effect")


@dataclass(slots=True)
class JobRows:
    """The rows of one job; tables are made when they are asked for."""

    job: Job
    run_id: str
    written_ns: int
    _spans: list[dict[str, Any]] = field(default_factory=list)
    _ids: dict[int, int] = field(default_factory=dict)

    def tables(self) -> dict[str, pa.Table]:
        """Rows of spans, events and facts."""
        times = [
            line.time_ns
            for log in self.job.ranks.values()
            for line in (log.first, log.last, *(trouble.line for trouble in log.troubles))
            if line is not None and line.time_ns is not None
        ]
        self.written_ns = max(times, default=self.written_ns)
        self._waits()
        spans = pa.Table.from_pylist(self._spans, schema=SPANS) if self._spans else None
        events = [*self._events()]
        return {
            "spans": spans if spans is not None else SPANS.empty_table(),
            "events": pa.Table.from_pylist(events, schema=EVENTS)
            if events
            else EVENTS.empty_table(),
            "facts": table_of(self._facts()),
        }

    def _ranks(self) -> dict[int, RankLog]:
        known = {rank: log for rank, log in self.job.ranks.items() if isinstance(rank, int)}
        return dict(sorted(known.items()))

    def _when(self, line: Line) -> int:
        """When a line was written; after all others where it does not say."""
        return line.time_ns if line.time_ns is not None else self.written_ns + line.order * 1000

    def _fact(
        self, name: str, value: Any, rank: int | None = None, line: Line | None = None,
        host: str | None = None, time_ns: int | None = None,
    ) -> FactRow:  # fmt: skip
        source = line.source if line is not None else None
        time = time_ns or (line.time_ns if line is not None else None)
        return FactRow(self.run_id, self.job.number, rank, name, value, host, time, source)

    # Spans

    def _waits(self) -> None:
        """Collectives that ranks were in, and those that they are known to have behind them."""
        ranks = self._ranks()
        calls: dict[str, dict[int, Wait]] = {}
        for log in ranks.values():
            for wait in log.waits.values():
                calls.setdefault(wait.group, {}).setdefault(wait.seq, wait)
        for rank, log in ranks.items():
            for group, waited in calls.items():
                own, work = log.waits.get(group), log.works.get(group)
                if own is not None:
                    self._span(rank, own, own.line, is_open=True)
                for seq, wait in waited.items():
                    if own is not None and own.seq == seq:
                        continue
                    behind = own is not None and own.seq > seq
                    if behind or (work is not None and work[1] >= seq):
                        self._span(rank, wait, own.line if own else wait.line, is_open=False)
                    elif own is None and work is not None and work[0] >= seq:
                        self._span(rank, wait, work[2], is_open=True)

    def _span(self, rank: int, wait: Wait, line: Line, is_open: bool) -> None:
        self._ids[rank] = self._ids.get(rank, 0) + 1
        end = self._when(line)
        start = end - wait.ran_ms * _MS
        told = {"source": line.source, "state": wait.state, "numel": wait.numel,
                "timeout_ms": wait.timeout_ms}  # fmt: skip
        members = self._members(wait.group)
        self._spans.append(
            {
                "run_id": self.run_id, "attempt": self.job.number, "rank": rank, "kind": "comm",
                "name": wait.op, "clock": "host", "span_id": self._ids[rank], "start_ns": start,
                "duration_ns": end - start if is_open else 0, "is_open": is_open,
                "status": None if is_open else "ok", "collective_op": wait.op,
                "collective_group": wait.group, "collective_seq": wait.seq,
                "group_size": len(members) or None, "attributes": _attributes(told),
            }
        )  # fmt: skip

    def _members(self, group: str) -> tuple[int, ...]:
        """Who is in a group: all ranks, or those that follow from places that lines show."""
        if group == DEFAULT_GROUP:
            return tuple(range(self.job.world))
        places = self.job.members.get(group, {})
        known = sorted(places.items())
        if len(known) > 1:
            (first, rank), (last, other) = known[0], known[-1]
            stride, rest = divmod(other - rank, last - first)
            start = rank - first * stride
            regular = all(rank == start + place * stride for place, rank in known)
            if regular and not rest and stride > 0 and start >= 0:
                return tuple(start + place * stride for place in range(last + 1))
        return tuple(sorted(places.values()))

    # Events

    def _events(self) -> Iterator[dict[str, Any]]:
        for rank, log in self._ranks().items():
            for trouble in log.troubles:
                yield self._event(rank, trouble)

    def _event(self, rank: int, trouble: Trouble) -> dict[str, Any]:
        told: dict[str, Any] = {
            "class": trouble.cause or None,
            "role": "survived" if self._survived(rank, trouble) else trouble.role,
            "pattern": trouble.pattern,
            "frame": trouble.frame,
            "type": trouble.raised.type if trouble.raised else None,
            "timed": trouble.line.time_ns is not None,
            **{f"said.{key}": value for key, value in trouble.said.items() if key in _TOLD},
        }
        return {
            "run_id": self.run_id, "attempt": self.job.number, "rank": rank,
            "name": trouble.name, "time_ns": self._when(trouble.line), "text": trouble.line.text,
            "source": trouble.line.source, "attributes": _attributes(told),
        }  # fmt: skip

    def _survived(self, rank: int, trouble: Trouble) -> bool:
        """Whether a rank went on after a trouble: a launcher's word of its end speaks against."""
        if any(ended.rank == rank for ended in self.job.ended):
            return False
        return trouble.survived and trouble.role not in ("wait", "status", "missing", "mismatch")

    # Facts

    def _facts(self) -> Iterator[FactRow]:
        job = self.job
        ended = self._ends()
        pids = {end.rank: end.pid for end in job.ended if end.rank is not None and end.pid}
        hosts = {end.rank: end.host for end in job.ended if end.rank is not None and end.host}
        ranks = self._ranks()
        for rank in sorted({*ranks, *(end.rank for end in job.ended if end.rank is not None)}):
            told: dict[str, Any] = {"rank": rank, "world_size": job.world}
            if rank in hosts:  # of some ranks only: not the host that clocks are told apart by
                told["node"] = hosts[rank]
            if rank in pids:
                told["pid"] = pids[rank]
            yield self._fact("rank", told, rank)
        for rank, log in ranks.items():
            yield self._fact("log", self._log(rank, log), rank, log.last)
            for group, (enqueued, completed, line) in log.works.items():
                value = {"group": group, "enqueued": enqueued, "completed": completed}
                yield self._fact("last_seq", value, rank, line)
            for group, wait in log.waits.items():
                if group not in log.works and wait.seq:
                    value = {"group": group, "enqueued": wait.seq, "completed": wait.seq - 1}
                    yield self._fact("last_seq", value, rank, wait.line)
        for rank, (value, end_line, time_ns) in ended.items():
            yield self._fact("end_state", value, rank, end_line, time_ns=time_ns)
        for group in {span["collective_group"] for span in self._spans}:
            members, name = self._members(group), job.group_names.get(group, group)
            listed = list(members)
            yield self._fact(
                "group", {"id": group, "name": name, "ranks": listed, "description": name}
            )
        yield from self._job_events()
        for who, lag in job.drift.lags().items():
            if isinstance(who, int):
                value = {"ms": lag.ms, "error_ms": lag.error_ms, "before_ms": lag.before_ms,
                         "messages": lag.messages, "at": lag.at, "source": lag.source}  # fmt: skip
                yield self._fact("log_drift", value, who)
        steps = job.drift.steps > len(ranks) or job.trained
        yield self._fact("log_phase", {"phase": "training" if steps else "startup"})

    def _log(self, rank: int, log: RankLog) -> dict[str, Any]:
        last = log.last
        return {
            "lines": log.lines,
            "troubles": len(log.troubles) + log.more,
            "doing": table().doing(last.text) if last is not None else None,
            "last": {"text": last.text, "source": last.source, "time_ns": last.time_ns}
            if last is not None
            else None,
        }

    def _job_events(self) -> Iterator[FactRow]:
        for event in self.job.events:
            yield self._fact("job_event", _job_event(event), None, event.line, event.host)
        alone = self.job.ranks.get(None)
        for trouble in alone.troubles if alone is not None else ():
            if trouble.role in ("cause", "memory") and not trouble.survived:
                value: dict[str, Any] = {
                    "class": trouble.cause, "role": "unknown_rank", "text": trouble.line.text,
                    "pattern": trouble.pattern, "frame": trouble.frame, "reason": None,
                }  # fmt: skip
                yield self._fact("job_event", value, None, trouble.line)
        for one in (*self.job.mismatches, *self.job.differing()):
            calls = [{k: v for k, v in call.items() if v} for call in one.calls]
            value = {"ranks": list(one.ranks), "calls": calls, "text": one.line.text}
            yield self._fact("log_mismatch", value, None, one.line)
        for quote in self.job.quoted[:_KEPT]:
            value = {"text": quote.line.text.strip(), "class": quote.cause, "role": "primary",
                     "count": 1, "peer": quote.peer}  # fmt: skip
            yield self._fact("nccl_error", value, quote.rank, quote.line)
        for missing, pattern, trouble in self.job.missing:
            value = {"ranks": [*missing], "pattern": pattern, "text": trouble.line.text}
            yield self._fact("log_missing", value, None, trouble.line)

    def _ends(self) -> dict[int, tuple[dict[str, Any], Line | None, int | None]]:
        """How each rank ended: the launcher's word, its error file, its own last traceback."""
        found: dict[int, tuple[dict[str, Any], Line | None, int | None]] = {}
        told: dict[int, list[Ended]] = {}
        for end in self.job.ended:
            if end.rank is not None:
                told.setdefault(end.rank, []).append(end)
        for rank, log in self._ranks().items():
            if rank not in told and not self.job.failed:
                fatal = [t for t in log.troubles if t.raised is not None and not t.survived]
                if fatal and fatal[0].role in _FATAL_ROLES:
                    value = {"state": "exception", "source": "log", **_raised(fatal[0])}
                    found[rank] = value, fatal[0].line, self._when(fatal[0].line)
        for rank, ends in told.items():
            found[rank] = self._end(rank, ends)
        return found

    def _end(self, rank: int, ends: list[Ended]) -> tuple[dict[str, Any], Line | None, int | None]:
        log = self._ranks().get(rank)
        signal = next((end.signal for end in ends if end.signal), None)
        code = next((end.code for end in ends if end.code is not None), None)
        if signal is None and code in _SIGNALS:
            signal, code = _SIGNALS[code], None
        own: dict[str, Any] = {}
        line, time_ns = ends[0].line, next((end.time_ns for end in ends if end.time_ns), None)
        for end in ends:
            if end.error:
                own = {"type": end.error, "message": end.message, "frame": end.frame}
                line = end.line
                break
        raised = [t for t in log.troubles if t.raised is not None] if log is not None else []
        if raised:
            first = next((t for t in raised if t.role in ("cause", "memory")), raised[0])
            own = own if own.get("frame") else {**_raised(first), **own}
            own.setdefault("frame", first.frame)
            own["frame"] = own["frame"] or first.frame
            if first.line.time_ns is not None:
                time_ns = first.line.time_ns
            if first.role == "effect" and signal in (6, 15):
                own = {}
        if signal == 9 and not ends[0].error:
            own = {}
        value: dict[str, Any] = {"source": "launcher", "code": code, **own}
        if signal is not None and not (own and signal in (6, 15)):
            value.update(state="signal", signal=signal)
        elif own:
            value["state"] = "exception"
            if code is not None and code < 0:
                value["code"] = None
        else:
            value["state"] = "exit" if code else "clean" if code == 0 else "vanished"
        if time_ns is None:
            last = log.last if log is not None else None
            time_ns = self._when(last) if last is not None else self.written_ns
        return value, line, time_ns


_TOLD = ("xid", "rank", "ranks", "a", "b", "device", "seconds", "to", "what", "seq", "op")


def _raised(trouble: Trouble) -> dict[str, Any]:
    raised = trouble.raised
    if raised is None:
        return {}
    return {"type": raised.type, "message": raised.message, "frame": trouble.frame}


def _job_event(event: JobEvent) -> dict[str, Any]:
    return {
        "class": event.cause, "role": event.role, "pattern": event.pattern,
        "text": event.line.text, "reason": event.reason, "name": event.name,
        **{key: value for key, value in event.said.items() if value is not None},
    }  # fmt: skip


def _attributes(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (key, json.dumps(value, ensure_ascii=False))
        for key, value in told.items()
        if value is not None
    ]

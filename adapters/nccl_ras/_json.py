"""From the JSON of RAS to answers: dumps of all communicators, and events of its monitor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracekit.adapters.nccl_ras._look import Comm, Look, Process, Reported, State
from tracekit.adapters.nccl_ras._table import table
from tracekit.adapters.nccl_ras._text import time_of

__all__ = ["read_json"]

_SUCCESS, _IN_PROGRESS = 0, 7


def read_json(file: str, text: str) -> Iterator[Look | str]:
    """The answers in a text of several JSON objects; a word where a part is none."""
    decoder = json.JSONDecoder()
    at, line = 0, 1
    while (begin := text.find("{", at)) >= 0:
        line += text.count("\n", at, begin)
        try:
            value, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            following = text.find("\n{", begin + 1)
            yield f"line {line}: an answer that is cut off"
            if following < 0:
                return
            line += text.count("\n", begin, following)
            at = following
            continue
        look = _look(file, line, value) if isinstance(value, dict) else None
        yield look if look is not None else f"line {line}: no answer of RAS"
        line += text.count("\n", begin, end)
        at = end


def _look(file: str, line: int, told: Mapping[str, Any]) -> Look | None:
    if "event" in told:
        return _event(file, line, told)
    if not isinstance(told.get("communicators"), list):
        return None
    look = Look(file, line, "json", _time(told), _text(told.get("nccl_version")), whole=True)
    dead: dict[tuple[str, int], Process] = {}
    silent: dict[tuple[str, int], Process] = {}
    devices: set[tuple[str, int, Any]] = set()
    for value in told["communicators"]:
        if not isinstance(value, dict):
            continue
        comm = look.comm(_text(value.get("hash")).removeprefix("0x").lstrip("0") or "0")
        comm.size = _number(value.get("size"))
        _ranks(comm, _objects(value.get("ranks")), devices)
        absent = 0
        for one in _objects(value.get("missing_ranks")):
            process, rank = _process(one), _number(one.get("rank"))
            status = one.get("status") if isinstance(one.get("status"), dict) else {}
            if rank is None or process is None or status is None:
                continue
            comm.members[rank] = process
            devices.add((*process.key, one.get("nvml_dev")))
            if status.get("considered_dead") is True:
                dead[process.key] = process
            elif status.get("unresponsive") is True:
                silent[process.key] = process
            else:
                absent += 1
                _stands(comm, "NOCOMM", rank)
                continue
            comm.missing_ranks.append(rank)
        comm.missing = len(comm.missing_ranks)
        look.running += any(state.value in ("RUNNING", "INIT") for state in comm.status)
    look.gpus = len(devices)
    look.nodes = len({host for host, _, _ in devices})
    look.processes = len({(host, pid) for host, pid, _ in devices})
    look.dead, look.dead_count = [*dead.values()], len(dead)
    look.silent, look.silent_count = [*silent.values()], len(silent)
    ras = told.get("ras")
    look.timeouts = (_number(ras.get("timeouts_count")) or 0) if isinstance(ras, dict) else 0
    return look


def _ranks(
    comm: Comm, ranks: Sequence[Mapping[str, Any]], devices: set[tuple[str, int, Any]]
) -> None:
    for one in ranks:
        rank, process = _number(one.get("rank")), _process(one)
        if rank is None or process is None:
            continue
        comm.members[rank] = process
        devices.add((*process.key, one.get("nvml_dev")))
        status = one.get("status")
        if isinstance(status, dict):
            _status(comm, rank, status)
        counts = one.get("collective_counts")
        for op, value in counts.items() if isinstance(counts, dict) else ():
            number = _number(value)
            if number is not None:
                _counted(comm, str(op), number, rank)
    idle = [op for op, states in comm.counts.items() if [s.value for s in states] == [0]]
    for op in idle:
        del comm.counts[op]
    for states in comm.counts.values():
        states.sort(key=lambda state: -state.count)


def _status(comm: Comm, rank: int, status: Mapping[str, Any]) -> None:
    init, error = _number(status.get("init_state")), _number(status.get("async_error"))
    if status.get("abort_flag") is True:
        word = "ABORT"
    elif status.get("finalize_called") is True or status.get("destroy_flag") is True:
        word = "FINALIZE"
    else:
        word = "RUNNING" if init == _SUCCESS else "INIT"
    _stands(comm, word, rank)
    for phase, result in (("initialization", init), ("asynchronous", error)):
        if result not in (None, _SUCCESS, _IN_PROGRESS):
            said = str(table()["results"].get(str(result), "Unexpected error"))
            known = next((r for r in comm.reported if (r.error, r.phase) == (said, phase)), None)
            if known is None:
                known = Reported(said, phase, 0)
                comm.reported.append(known)
            known.count += 1
            known.ranks.append(rank)


def _stands(comm: Comm, word: str, rank: int) -> None:
    _add(comm.status, word, rank)


def _counted(comm: Comm, op: str, value: int, rank: int) -> None:
    _add(comm.counts.setdefault(op, []), value, rank)


def _add(states: list[State], value: int | str, rank: int) -> None:
    known = next((state for state in states if state.value == value), None)
    if known is None:
        known = State(value, 0)
        states.append(known)
    known.count += 1
    known.ranks.append(rank)


def _event(file: str, line: int, told: Mapping[str, Any]) -> Look:
    look = Look(file, line, "event", _time(told), whole=True)
    peer = told.get("peer")
    process = _process(peer) if isinstance(peer, dict) else None
    listed = [process] if process is not None else []
    if told.get("event") in table()["dead_events"]:
        look.dead, look.dead_count = listed, 1
    elif told.get("event") in table()["silent_events"]:
        look.silent, look.silent_count = listed, 1
    return look


def _process(told: Mapping[str, Any]) -> Process | None:
    pid, host = _number(told.get("pid")), told.get("host")
    if pid is None or not isinstance(host, str):
        return None
    gpus = told.get("cuda_devs")
    if not isinstance(gpus, list):
        gpus = [told.get("cuda_dev")]
    devices = tuple(device for device in gpus if _number(device) is not None)
    return Process(host[:255], pid, devices, _number(told.get("rank")))


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value[:80] if isinstance(value, str) else ""


def _time(told: Mapping[str, Any]) -> int | None:
    return time_of(_text(told.get("timestamp")))

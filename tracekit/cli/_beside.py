"""Foreign files beside a run: what they tell is looked at together with what its ranks recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.dataset.facts import FactRow, table_of

if TYPE_CHECKING:
    from tracekit.dataset import Run

__all__ = ["KINDS", "add_beside"]

KINDS = frozenset(("flight_recorder", "nccl_log", "nccl_tests", "text_logs"))
"""Files that tell how a job ended, and not how fast it was."""

_DUMPS = "group:flight_recorder"
_MARGIN_NS = 3600 * 10**9
_KNOWN_BETTER = ("last_seq", "log_phase", "group")
"""What a run's own records say of its ranks."""
_OF_LIBRARY = ("nccl", "communicator", "network", "environment")
"""Facts whose rows name the host of a process of which the rank may not be known."""


def add_beside(run: Run, foreign: Run) -> list[tuple[Path, str]]:
    """Add the tables that were made of foreign files to those of a run, as of its last attempt.

    Times in logs may be of another zone. So the calls that logs speak of are no spans here but
    facts with times of their own, and how a rank ended is taken from a launcher's word alone.
    Returns the dumps that are not used, as of another time than the run, and why.
    """
    shift = run.attempts[-1].number if run.attempts else 0
    shift -= max((one.number for one in foreign.attempts), default=0)
    place = {"run_id": run.run_id, "shift": shift}
    spans = [row for row in _calls(foreign) if row["attempt"] + shift >= 0]
    facts = foreign.table("facts").to_pylist()
    strange = _of_another_time(run, facts)
    if strange:
        spans = [row for row in spans if row["lane"] != _DUMPS]
        facts = [row for row in facts if row["name"] != "dump"]
    members = {
        value["id"]: value.get("ranks") or ()
        for row in facts
        if row["name"] == "group" and "id" in (value := _value(row["value"]))
    }
    kept = [*_facts(facts, run, spans, place), *_waits(spans, members, place)]
    run.sources["facts"].append(table_of(kept))
    for name, rows in (
        ("spans", [row for row in spans if row["lane"] == _DUMPS]),
        ("events", foreign.table("events").to_pylist()),
    ):
        moved = [_moved(row, place) for row in rows if row["attempt"] + shift >= 0]
        if moved:
            schema = foreign.table(name).schema
            run.sources[name].append(pa.Table.from_pylist(moved, schema=schema))
    return [(Path(file), "a dump of another time than the run") for file in strange]


def _of_another_time(run: Run, facts: list[dict[str, Any]]) -> list[str]:
    """The dumps, where not one of them can be of this run; both have Unix times."""
    told = [
        _value(row["value"]) if row["name"] == "rank" else row["time_ns"]
        for row in run.table("facts", ("name", "value", "time_ns")).to_pylist()
        if row["name"] in ("rank", "heartbeat", "end_state", "stack")
    ]
    times = [
        time
        for one in told
        if isinstance(time := one.get("started_ns") if isinstance(one, dict) else one, int)
    ]
    dumps = [_value(row["value"]) for row in facts if row["name"] == "dump"]
    newest = [time for dump in dumps if isinstance(time := dump.get("newest_ns"), int)]
    if not times or not newest or len(newest) < len(dumps):
        return []
    near = any(min(times) - _MARGIN_NS <= time <= max(times) + _MARGIN_NS for time in newest)
    return [] if near else [str(dump.get("file")) for dump in dumps]


def _calls(foreign: Run) -> list[dict[str, Any]]:
    """The spans that dumps and logs tell of: those of dumps have a lane of their own, the others
    none."""
    table = foreign.table("spans")
    lane = pc.cast(table["lane"], pa.string())
    wanted = pc.or_(pc.is_null(lane), pc.fill_null(pc.equal(lane, _DUMPS), False))
    rows: list[dict[str, Any]] = table.filter(wanted).to_pylist()
    return rows


def _moved(row: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "run_id": place["run_id"], "attempt": row["attempt"] + place["shift"]}


def _facts(
    rows: list[dict[str, Any]], run: Run, spans: list[dict[str, Any]], place: Mapping[str, Any]
) -> Iterator[FactRow]:
    dumped = {row["collective_group"] for row in spans if row["lane"] == _DUMPS}
    dumps = any(row["name"] == "dump" for row in rows)
    for row in rows:
        attempt, name, host = row["attempt"] + place["shift"], row["name"], row["host"]
        value = _value(row["value"])
        if attempt < 0:
            continue
        if name == "group" and dumps and (value.get("id") in dumped or "told" in value):
            name = "dump_group"
        known = name in _KNOWN_BETTER or (name == "rank" and row["rank"] in run.ranks)
        if known or (name == "end_state" and value.get("source") != "launcher"):
            continue
        if row["rank"] in run.ranks and not name.startswith(_OF_LIBRARY):
            host = None
        time_ns = None if name == "end_state" else row["time_ns"]  # which zone's is not known
        yield FactRow(
            place["run_id"], attempt, row["rank"], name, host=host, time_ns=time_ns,
            source=row["source"], text=row["value"],
        )  # fmt: skip


def _waits(
    spans: list[dict[str, Any]], members: Mapping[str, Any], place: Mapping[str, Any]
) -> Iterator[FactRow]:
    """The calls that logs speak of: their spans have no lane."""
    for row in spans:
        if row["lane"] is not None or row["kind"] != "comm":
            continue
        told = {key: _value(text) for key, text in row["attributes"] or ()}
        group, start = row["collective_group"], row["start_ns"]
        value = {
            "group": group, "seq": row["collective_seq"], "op": row["collective_op"],
            "start_ns": start, "end_ns": start + row["duration_ns"], "is_open": row["is_open"],
            "members": list(members.get(group, ())), "source": told.get("source"),
        }  # fmt: skip
        yield FactRow(
            place["run_id"], row["attempt"] + place["shift"], row["rank"], "log_wait", value,
            source=str(told.get("source")),
        )  # fmt: skip


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}

"""What logs tell beside the verdict: the first error of every rank, Xids, who writes late."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracekit.analysis.post_mortem.claims import Mortem, all_lines
from tracekit.analysis.post_mortem.logs import LogEvent, Logs
from tracekit.findings import Certainty, Finding, Severity, Words, ranks_words, say
from tracekit.findings.causes import XIDS

__all__ = [
    "advice_for",
    "at_frame",
    "first_errors",
    "late_logs",
    "lost_peers",
    "may_be_ours",
    "retold",
    "with_evidence",
    "xids",
]

_LISTED = 16
_PEERS = 4
_LOST = re.compile(r"closed by remote peer ([^\s<]{1,255})<")
_GPU = ("gpu_ecc", "gpu_xid")
_HOST = ("host_shm", "host_memlock", "host_files")
_BY_SIGNAL = ("aborted", "killed_signal")
_DRIFT_S = 5.0
_SIGNALS = {one.value for one in signal.Signals}
_NUMBERS = re.compile(r"\d{1,20}")
_PLACE = re.compile(r"\[/[^\]]{1,200}:\d{1,6}\] ")
"""Where in a library's source a message is made."""


def at_frame(frame: str | None) -> Words:
    """Where an error came from, if that is known."""
    return say("log.at", frame=frame) if frame else say("log.nowhere")


def retold(finding: Finding, logs: Logs) -> Finding:
    """A killed rank of which nothing is recorded but a log: told with its last line."""
    told = finding.evidence
    known = told.get("inside") or told.get("last_span") or told.get("class") not in _BY_SIGNAL
    if finding.id != "crash.killed" or len(finding.ranks) != 1 or known or not told.get("signal"):
        return finding
    rank, number = finding.ranks[0], int(told["signal"])
    last = logs.last.get(rank) or {}
    victims = ranks_words(told.get("victims") or ())
    name = signal.Signals(number).name if number in _SIGNALS else "unknown"
    title = say(
        "log.killed", rank=rank, signal=number, name=name, source=say("source.launcher"),
        victims=say("crash.victims", ranks=victims) if told.get("victims") else "",
        doing=say("doing.wrote", text=str(last.get("text"))[:160], source=last.get("source"))
        if last else say("doing.no_log"),
    )  # fmt: skip
    evidence = {**told, "last_line": last.get("text")}
    return replace(finding, title=title, evidence=evidence)


def with_evidence(finding: Finding, listed: Sequence[Finding]) -> Finding:
    """A finding that has the first errors of all ranks in its evidence."""
    more = {key: value for one in listed for key, value in one.evidence.items()}
    return replace(finding, evidence={**finding.evidence, **more})


def first_errors(logs: Logs, judged: Mortem, ranks: Sequence[int]) -> Iterable[Finding]:
    """Rank 0's first error or none, then every other rank's; equal ones together."""
    errors = {rank: logs.first_error(rank) for rank in ranks}
    if judged.symptom is None and not any(errors.values()):
        return
    rows: list[dict[str, Any]] = []
    alike: dict[tuple[str, str | None, bool], list[int]] = {}
    silent: list[int] = []
    for rank, error in errors.items():
        if error is None:
            waits = rank in judged.waiting or (
                judged.symptom == "hang" and bool(judged.culprits) and rank not in judged.culprits
            )
            rows.append({"rank": rank, "error": None, "waits": waits})
            silent.append(rank)
            continue
        own = error.is_cause or error.role == "told"
        follows = not own and rank not in judged.culprits
        rows.append(
            {"rank": rank, "error": error.text, "frame": error.frame, "class": error.cause,
             "source": error.source, "effect": follows}
        )  # fmt: skip
        alike.setdefault((_masked(error.text), error.frame, follows), []).append(rank)
    parts = [*_rank_0(rows), *(_part(errors, key, told) for key, told in alike.items())]
    others = [rank for rank in silent if rank]
    if others:
        parts.append(say("log.first.silent", ranks=ranks_words(others)))
    if len(parts) > _LISTED:
        parts = [*parts[:_LISTED], say("log.first.more", count=len(parts) - _LISTED)]
    id_ = judged.findings[0].id if judged.findings else "crash.error"
    yield Finding(
        id_, Severity.INFO, Certainty.PROVEN,
        say("log.first_errors", listed="; ".join(parts)), evidence={"first_errors": rows},
    )  # fmt: skip


def lost_peers(logs: Logs) -> tuple[str, ...]:
    """The hosts that connections were lost to, as ranks name them; of many the first ones."""
    found = (_LOST.search(event.text) for event in logs.events if event.role == "effect")
    return tuple(dict.fromkeys(match[1] for match in found if match))[:_PEERS]


def _rank_0(rows: Sequence[Mapping[str, Any]]) -> Iterable[Words]:
    """That rank 0 wrote no error, and whether that is because it waits."""
    row = next((row for row in rows if row["rank"] == 0), None)
    if row is not None and row["error"] is None:
        silent = say("log.first.waits" if row["waits"] else "log.first.not_waiting")
        yield say("log.first.none", rank=0, silent=silent)


def _part(
    errors: Mapping[int, LogEvent | None], key: tuple[str, str | None, bool], ranks: Sequence[int]
) -> Words:
    text, frame, follows = key
    first = errors[ranks[0]]
    shown = _PLACE.sub("", first.text if first is not None else text)[:120]
    told = say("log.first.effect" if follows else "log.first.cause")
    where = at_frame(frame)
    return say("log.first.error", ranks=ranks_words(ranks), text=shown, where=where, effect=told)


def _masked(text: str) -> str:
    return _NUMBERS.sub("#", _PLACE.sub("", text))[:80]


def xids(logs: Logs, judged: Mortem) -> Iterable[Finding]:
    """What a GPU told its driver and no verdict has: worth a look where the job died of unknown
    causes, else a remark."""
    told = {line.partition(": ")[0] for finding in judged.findings for line in all_lines(finding)}
    known = any(one.ranks and one.certainty is Certainty.PROVEN for one in judged.findings)
    left = [one for one in logs.job if one.get("class") == "gpu_xid" and one["source"] not in told]
    for event in left[:3]:
        ends = str(event.get("xid")) in XIDS and judged.symptom is not None and not known
        severity = Severity.WARNING if ends else Severity.INFO
        yield Finding(
            "crash.error", severity, Certainty.LIKELY,
            say("log.xid", xid=event.get("xid"), text=event["text"]),
            evidence={key: event.get(key) for key in ("class", "source", "text", "time_ns")},
            advice=(say("advice.log.gpu"),),
        )  # fmt: skip


def late_logs(logs: Logs) -> Iterable[Finding]:
    """Ranks whose log is behind the others' by much more than the spread."""
    for rank, lag in sorted(logs.drift.items()):
        since = lag["ms"] - lag["before_ms"] if lag.get("at") else lag["ms"]
        if since < max(_DRIFT_S * 1e3, 5 * lag["error_ms"]):
            continue
        key = "log.drift" if lag.get("at") else "log.drift.always"
        yield Finding(
            "straggler.rank",
            Severity.WARNING if lag.get("at") else Severity.INFO,
            Certainty.LIKELY if lag.get("at") else Certainty.CANNOT_TELL,
            say(key, rank=rank, seconds=since / 1e3, text=lag.get("at"), source=lag["source"]),
            ranks=(rank,), evidence=lag, advice=(say("advice.log.link", rank=rank),),
        )  # fmt: skip


def may_be_ours(event: Mapping[str, Any]) -> bool:
    """Whether a process that the kernel killed can have been a rank's."""
    program = str(event.get("program") or "python")
    return "python" in program or program.startswith("pt_")


def advice_for(event: LogEvent) -> Words:
    """What to do about a rank's own trouble."""
    if event.cause in _GPU:
        return say("advice.log.gpu")
    if event.cause in ("gpu_illegal", "gpu_assert"):
        return say("advice.log.illegal")
    if event.cause in ("gpu_oom",):
        return say("advice.oom")
    if event.cause == "killed_oom":
        return say("advice.log.memory")
    return say("advice.log.host" if event.cause in _HOST else "advice.error")

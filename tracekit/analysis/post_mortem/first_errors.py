"""Verdicts from logs: whose error was first, and whose only follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracekit.analysis.basis.ends import End
from tracekit.analysis.basis.facts import Facts
from tracekit.analysis.post_mortem.claims import Mortem
from tracekit.analysis.post_mortem.log_notes import (
    advice_for,
    at_frame,
    lost_peers,
)
from tracekit.analysis.post_mortem.logs import LogEvent, Logs
from tracekit.findings import Certainty, Finding, Severity, Words, ranks_words, say, waiting_words
from tracekit.model import Direction, direction

__all__ = ["Case"]

_KILL, _TERM, _ABORT = 9, 15, 6
_LISTED = 16


@dataclass(slots=True)
class Case:
    """All that is known."""

    mortem: Mortem
    logs: Logs
    ends: Mapping[int, End]
    facts: Facts

    @property
    def ranks(self) -> list[int]:
        known = {*self.ends, *self.logs.last, *(event.rank for event in self.logs.events)}
        return sorted(known | set(range(self.facts.world_size)))

    # Errors of a rank's own

    def own_trouble(self) -> Mortem | None:
        """The rank whose own trouble came first: it explains a hang and the others' ends."""
        causes = self.logs.causes()
        if not causes:
            return None
        accused = set(self.mortem.culprits)
        if self.mortem.symptom == "hang" and accused:
            causes = [event for event in causes if event.rank in accused or event.cause]
            if not causes:
                return None
        elif self.mortem.symptom is None and not self._fatal(causes):
            return None
        first = min(causes, key=lambda event: (not event.cause, event.time_ns))
        if not first.cause:
            dead = [event for event in causes if event.rank in accused]
            first = dead[0] if dead else causes[0]
        elif all(event.timed for event in causes):
            first = min(causes, key=lambda event: event.time_ns)
        ranks: tuple[int, ...] = (first.rank,)
        if first.cause:
            ranks = tuple(dict.fromkeys(e.rank for e in causes if e.cause == first.cause))
        memory = first.cause in ("gpu_oom", "killed_oom")
        id_, key = ("crash.oom", "log.oom") if memory else ("crash.error", "log.error")
        found = Finding(
            id_, Severity.CRITICAL,
            Certainty.PROVEN if first.cause or self._told_dead(first.rank) else Certainty.LIKELY,
            say(key, rank=first.rank, text=first.text, where=at_frame(first.frame),
                victims=self.victims(ranks)),
            ranks=ranks, evidence=self._event_evidence(first), advice=(advice_for(first),),
        )  # fmt: skip
        return Mortem(
            "oom" if memory else "crash",
            (found,),
            ranks,
            tuple(set(self.mortem.waiting) - set(ranks)),
        )

    def _fatal(self, causes: Sequence[LogEvent]) -> bool:
        """Whether any of them can have ended the job: it was told, or nothing came after."""
        return any(event.cause or event.rank in self.ended() for event in causes)

    def ended(self) -> set[int]:
        """Ranks that ended other than they should."""
        return {rank for rank, end in self.ends.items() if end.is_bad}

    def _told_dead(self, rank: int) -> bool:
        """Whether somebody else than the rank's own log says that it ended badly."""
        end = self.ends.get(rank)
        return end is not None and end.is_bad and end.source != "log"

    def troubled(self) -> bool:
        """Whether anything went wrong at all."""
        return bool(self.ended()) or any(event.is_error for event in self.logs.events)

    # Hangs that ranks report

    def mismatch(self) -> Mortem | None:
        """Ranks that compared their calls and found them to differ."""
        calls: dict[int, tuple[str, str, str, str]] = {}
        for one in self.logs.mismatches:
            for rank, call in zip(one["ranks"], one["calls"], strict=False):
                if isinstance(rank, int) and call:
                    calls.setdefault(rank, tuple(  # type: ignore[arg-type]
                        str(call.get(key, "")) for key in ("op", "seq", "shape", "dtype")
                    ))  # fmt: skip
        sides: dict[tuple[str, str, str, str], list[int]] = {}
        for rank, made in sorted(calls.items()):
            sides.setdefault(made, []).append(rank)
        if len(sides) < 2:
            return None
        ordered = sorted(sides.items(), key=lambda item: -len(item[1]))
        odd = [rank for _, ranks in ordered[1:] for rank in ranks]
        clear = len(ordered[0][1]) > len(odd)
        listed = "; ".join(
            say("log.call", ranks=ranks_words(ranks), op=op, seq=seq,
                shape=f" [{shape}] {dtype}".rstrip())
            for (op, seq, shape, dtype), ranks in ordered
        )  # fmt: skip
        ranks = tuple(sorted(odd if clear else calls))
        key = "log.mismatch.odd" if clear else "log.mismatch"
        finding = Finding(
            "hang.mismatch", Severity.CRITICAL, Certainty.PROVEN,
            say(key, ranks=ranks_words(ranks), calls=listed), ranks=ranks,
            evidence={
                "class": "mismatch", "source": self.logs.mismatches[0]["source"],
                "calls": {str(rank): list(made) for rank, made in calls.items()},
                "user_frames": self._frames(calls),
            },
            advice=(say("advice.branch"),),
        )  # fmt: skip
        return Mortem("hang", (finding,), ranks if clear else ())

    def reported_missing(self) -> Mortem | None:
        """Ranks that others say did not come: a monitored barrier, a desync report."""
        if not self.logs.missing:
            return None
        missing = sorted({int(rank) for one in self.logs.missing for rank in one["ranks"]})
        first = self.logs.missing[0]
        barrier = first.get("pattern") == "monitored_barrier"
        call = say("log.missing.barrier" if barrier else "log.missing.collective")
        found = tuple(
            Finding(
                "hang.missing_rank", Severity.CRITICAL, Certainty.PROVEN,
                say("log.missing", rank=rank, call=call, doing=self._doing(rank)), ranks=(rank,),
                evidence={**self.evidence(first, rank), "class": "rank_missing"},
                advice=(say("advice.log.look", rank=rank),),
            )
            for rank in missing[:_LISTED]
        )  # fmt: skip
        waiting = tuple(rank for rank in self.ranks if rank not in missing)
        return Mortem("hang", found, tuple(missing), waiting, call)

    def quoted(self) -> Mortem | None:
        """Causes that errors quote of the communication library: findings about it tell them, so
        here is only left whom nobody else has to explain."""
        told = {event.rank for event in self.logs.events if event.role == "told"}
        killed = any(e.signal not in (None, _TERM, _ABORT) for e in self.ends.values())
        if (
            not told
            or killed
            or set(self.mortem.culprits) - told
            or told & set(self.mortem.waiting)
        ):
            return None
        return replace(self.mortem, symptom=None, findings=(), culprits=tuple(sorted(told)))

    def recorded(self) -> Mortem | None:
        """A hang or a crash that the records show; logs make it clearer, and more careful."""
        mortem = self.mortem
        if mortem.symptom != "hang":
            return None
        behind = self._behind()
        if behind is not None:
            return behind
        others = [rank for rank in self.ranks if rank not in mortem.waiting]
        recorded = any(e.opened or e.last_span for r, e in self.ends.items() if r in others)
        alone = len(mortem.waiting) == 1 and len(others) > 1 and not recorded
        if alone and len(mortem.culprits) == len(others) and not self.ended() & set(others):
            finding = replace(
                mortem.findings[0], certainty=Certainty.CANNOT_TELL, ranks=mortem.waiting,
                title=say("log.alone", rank=mortem.waiting[0], call=mortem.call,
                          ranks=ranks_words(others)),
                advice=(say("advice.branch"), say("advice.log.all")),
            )  # fmt: skip
            return replace(mortem, findings=(finding,), culprits=())
        return replace(mortem, findings=tuple(self._with_last_line(f) for f in mortem.findings))

    def _with_last_line(self, finding: Finding) -> Finding:
        """A finding about one rank, with the last line that it wrote."""
        last = self.logs.last.get(finding.ranks[0]) if len(finding.ranks) == 1 else None
        if not last:
            return finding
        evidence = {
            "class": "rank_missing", **finding.evidence, "last_line": last.get("text"),
            "source": last.get("source"),
        }  # fmt: skip
        title, id_, advice = finding.title, finding.id, finding.advice
        if finding.evidence.get("inside") is None and finding.evidence.get("last_span") is None:
            rank, call = finding.ranks[0], self.mortem.call
            advice = (say("advice.log.look", rank=rank),)
            if rank in self.logs.doing and id_ == "hang.missing_rank":
                id_, evidence["class"] = "hang.busy_rank", "rank_busy"
                evidence["doing"] = self.logs.doing[rank]
            if finding.id == "hang.missing_rank" and call is not None:
                title = say(
                    id_, rank=rank, call=call, waiting=waiting_words(self.mortem.waiting),
                    seconds=finding.evidence.get("seconds") or 0.0, doing=self._doing(rank),
                )  # fmt: skip
        return replace(finding, id=id_, evidence=evidence, title=title, advice=advice)

    def _behind(self) -> Mortem | None:
        """Ranks that timed out at an earlier collective of a group than the others."""
        groups: dict[str, dict[int, list[int]]] = {}
        ops: dict[str, set[str]] = {}
        for rank, end in self.ends.items():
            for call in end.calls:
                seqs = groups.setdefault(call.group or "", {})
                seqs.setdefault(call.seq or 0, []).append(rank)
                ops.setdefault(call.group or "", set()).add(call.op or "")
        for group, seqs in groups.items():
            if len(seqs) < 2 or not self.logs.last:
                continue
            least = min(seqs)
            late, ahead = sorted(seqs[least]), max(seqs)
            named, id_, cause = late, "hang.missing_rank", "rank_missing"
            if len(late) > sum(len(ranks) for ranks in seqs.values()) / 2:
                # who ended a call that most have not ended did not make the same one
                named = sorted(r for seq, ranks in seqs.items() if seq > least + 1 for r in ranks)
                id_, cause = "hang.mismatch", "mismatch"
                if not named or any(direction(op) is not Direction.ALL for op in ops[group]):
                    continue
            name = self.facts.group_names.get(group) or group
            behind = say("log.behind", ranks=ranks_words(late), seq=least, group=name, ahead=ahead)
            key = "log.behind.title" if named is late else "log.ahead.title"
            finding = Finding(
                id_, Severity.CRITICAL, Certainty.LIKELY,
                say(key, behind=behind, ranks=ranks_words(named)),
                ranks=tuple(named),
                evidence={"class": cause, "group": group,
                          "seqs": {str(seq): ranks for seq, ranks in sorted(seqs.items())}},
                advice=(say("advice.branch"), say("advice.log.detail")),
            )  # fmt: skip
            return replace(self.mortem, findings=(finding,), culprits=tuple(named))
        return None

    # What ended the job from outside, and what is left

    def scheduler(self) -> Mortem | None:
        """The scheduler's word, where nothing of the ranks' own came before it."""
        told = self.logs.about("scheduler")
        bad = [end for end in self.ends.values() if end.is_bad]
        own = [end for end in bad if end.signal not in (None, _TERM)]
        if (
            len(bad) == len(self.ends)
            and all(end.signal == _KILL for end in own)
            and (len(own) == len(bad))
        ):
            own = []  # who did not end when told to was killed, and that was everybody
        if not told and not own and self._only_terminated():
            told = self.logs.about("cancelled")
        if not told or (own and self.mortem.symptom) or self.logs.causes():
            return None
        event = told[0]
        reason = event.get("reason") or "cancelled"
        finding = Finding(
            "crash.killed", Severity.WARNING, Certainty.PROVEN,
            say("log.scheduler", reason=say(f"reason.{reason}"), text=event["text"]),
            ranks=tuple(sorted(self.ended())), evidence=self.evidence(event),
            advice=(say("advice.log.scheduler", job=str(event.get("job") or "JOB").split(".")[0]),),
        )  # fmt: skip
        return Mortem("crash", (finding,))

    def _only_terminated(self) -> bool:
        """Whether whatever ended did so because it was told to, and nobody wrote an error."""
        wrote = any(e.is_error and e.role not in ("effect", "logged") for e in self.logs.events)
        return not wrote and all(e.signal == _TERM for e in self.ends.values() if e.is_bad)

    def waited(self) -> Mortem | None:
        """Ranks that gave up waiting, where no record says in which call: the silent one."""
        waits = {event.rank for event in self.logs.events if event.role == "wait"}
        if not waits or self._blameless() is None:
            return None
        told = {event.rank for event in self.logs.events if event.is_error}
        silent = [rank for rank in self.ranks if rank not in told]
        if not silent or len(silent) > len(waits):
            finding = Finding(
                "hang.missing_rank", Severity.CRITICAL, Certainty.CANNOT_TELL,
                say("log.all_waited"),
                evidence={"class": "timed_out", "waiting_ranks": sorted(waits)},
                advice=(say("advice.log.all"),),
            )  # fmt: skip
            return Mortem("hang", (finding,), (), tuple(sorted(waits)))
        call = say("log.missing.collective")
        found = tuple(
            Finding(
                "hang.busy_rank" if rank in self.logs.doing else "hang.missing_rank",
                Severity.CRITICAL, Certainty.LIKELY,
                say("log.silent", waiting=waiting_words(sorted(waits)), rank=rank,
                    doing=self._doing(rank)),
                ranks=(rank,),
                evidence={**self._last_evidence(rank), "waiting_ranks": sorted(waits),
                          "class": "rank_missing"},
                advice=(say("advice.log.look", rank=rank),),
            )
            for rank in silent[:_LISTED]
        )  # fmt: skip
        return Mortem("hang", found, tuple(silent), tuple(sorted(waits)), call)

    def effects(self) -> Mortem | None:
        """Ranks that lost a connection, and nobody who says that it ended first."""
        lost = sorted({event.rank for event in self.logs.events if event.role == "effect"})
        if not lost or self._blameless() is None:
            return None
        told = {event.rank for event in self.logs.events if event.is_error}
        silent = [rank for rank in self.ranks if rank not in told]
        if len(silent) == 1:
            title = say("log.only_effects.rank", ranks=ranks_words(lost), rank=silent[0],
                        doing=self._doing(silent[0]))  # fmt: skip
            certainty, advice = Certainty.LIKELY, say("advice.log.look", rank=silent[0])
            cause = "vanished"
        else:
            title = say("log.only_effects", ranks=ranks_words(lost))
            certainty, advice, silent = Certainty.CANNOT_TELL, say("advice.log.all"), []
            cause = "closed"
        peers = lost_peers(self.logs)
        if peers:
            title = say("log.only_effects.peer", title=title, peers=", ".join(peers))
        finding = Finding(
            "crash.vanished", Severity.CRITICAL, certainty, title, ranks=tuple(silent),
            evidence={"class": cause, "victims": lost, "peers": list(peers)}, advice=(advice,),
        )  # fmt: skip
        return Mortem("crash", (finding,), tuple(silent), tuple(lost))

    def _blameless(self) -> bool | None:
        """True where nobody is known to have ended by itself; None where somebody is."""
        if self.mortem.symptom is None:
            return True
        if self.mortem.symptom == "hang" or len(self.mortem.culprits) != 1:
            return None if self.mortem.symptom == "hang" else True
        end = self.ends.get(self.mortem.culprits[0])
        first = self.logs.first_error(self.mortem.culprits[0])
        follows = first is not None and not first.is_cause and first.role != "logged"
        died = end is not None and end.signal not in (None, _TERM, _ABORT)
        return True if follows and not died else None

    def unknown_rank(self) -> Mortem | None:
        """An error in lines that do not say whose they are."""
        told = self.logs.about("unknown_rank")
        known = self.mortem.symptom is not None and all(
            finding.evidence.get("error") or finding.evidence.get("signal")
            for finding in self.mortem.findings
        )
        if not told or known:
            return None
        event = told[0]
        finding = Finding(
            "crash.error", Severity.CRITICAL, Certainty.LIKELY,
            say("log.unknown_rank", text=event["text"], where=at_frame(event.get("frame"))),
            ranks=self.mortem.culprits, evidence=self.evidence(event),
            advice=(say("advice.error"),),
        )  # fmt: skip
        return Mortem("crash", (finding,), self.mortem.culprits)

    def ended_together(self) -> Mortem | None:
        """Ranks that a launcher saw end in one second by exit codes, and none wrote why."""
        accused = self.ends.get(self.mortem.culprits[0]) if self.mortem.culprits else None
        if accused is None or accused.state != "exit" or self.mortem.symptom == "hang":
            return None
        alike = [
            rank for rank, end in self.ends.items()
            if end.state == "exit" and end.code and abs(end.time_ns - accused.time_ns) <= 2e9
        ]  # fmt: skip
        if len(alike) < 2 or any(self.logs.first_error(rank) for rank in alike):
            return None
        finding = replace(
            self.mortem.findings[0], certainty=Certainty.CANNOT_TELL, ranks=tuple(sorted(alike)),
            title=say("log.exits", ranks=ranks_words(alike), code=accused.code),
            advice=(say("advice.log.all"),),
        )  # fmt: skip
        return replace(self.mortem, findings=(finding,), culprits=())

    # Words and evidence

    def _doing(self, rank: int) -> Words:
        last = self.logs.last.get(rank)
        if not last:
            return say("doing.no_log")
        return say("doing.wrote", text=str(last.get("text"))[:160], source=last.get("source"))

    def victims(self, culprits: Sequence[int]) -> Words:
        """Who ended because of some ranks, in words."""
        others = sorted(self.ended() - set(culprits))
        return (
            say("crash.victims", ranks=ranks_words(others)) if others else say("crash.no_victims")
        )

    def _frames(self, ranks: Iterable[int]) -> dict[str, str]:
        errors = {rank: self.logs.first_error(rank) for rank in ranks}
        return {str(rank): one.frame for rank, one in errors.items() if one and one.frame}

    def evidence(self, event: Mapping[str, Any], rank: int | None = None) -> dict[str, Any]:
        """What a line says, and the last line of the rank it is about."""
        told = {key: event.get(key) for key in ("class", "source", "text", "time_ns", "reason")}
        return {**told, **(self._last_evidence(rank) if rank is not None else {})}

    def _last_evidence(self, rank: int) -> dict[str, Any]:
        last = self.logs.last.get(rank) or {}
        return {"last_line": last.get("text"), "last_line_source": last.get("source")}

    def _event_evidence(self, event: LogEvent) -> dict[str, Any]:
        return {
            "class": event.cause, "source": event.source, "error": event.text, "text": event.text,
            "frame": event.frame, "time_ns": event.time_ns if event.timed else None,
            "victims": sorted(self.ended() - {event.rank}),
        }  # fmt: skip

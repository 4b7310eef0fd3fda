"""Profiles of any number of workers and sessions become one run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from tracekit.adapters._reading import Intake, Progress
from tracekit.adapters.xplane._edges import without_cut_calls
from tracekit.adapters.xplane._profile import Profile, read_profile
from tracekit.adapters.xplane._rows import Owner, group_name, span_rows
from tracekit.adapters.xplane._space import looks_like_a_space, open_space
from tracekit.adapters.xplane._steps import Step, aligned, steps_of

__all__ = ["XPlaneImporter", "replicas_of"]

_SUFFIX = ".xplane.pb"
_DIGITS = re.compile(r"(\d+)")

Worker = tuple[str | int, ...]


@dataclass(slots=True)
class _File:
    """One file and what is in it."""

    path: Path
    profile: Profile
    steps: list[Step] = field(default_factory=list)

    @property
    def worker(self) -> Worker:
        """Whose it is: the task that it names, else its folder and name."""
        if self.profile.task is not None:
            return ("task", *self.profile.task)
        folder = self.path.parent
        if folder.parent.name == "profile":  # <log directory>/plugins/profile/<session>
            folder = folder.parent.parent.parent
        return ("file", str(folder), self.path.name.removesuffix(_SUFFIX))

    @property
    def host(self) -> str:
        """The host's name: what the profile says, else what the file is called."""
        return self.profile.host or self.path.name.removesuffix(_SUFFIX)


class XPlaneImporter:
    """Reads the profiles of ``tf.profiler`` and ``jax.profiler``, one file a host and session."""

    name = "xplane"

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Whether it begins with a plane as profilers name them."""
        return looks_like_a_space(head)

    def read(self, paths: Sequence[Path], intake: Intake, progress: Progress) -> None:
        """Read profiles as the ranks of one run. Workers are told apart by their task in the
        cluster, else by where their files lie; sessions by their times."""
        files: list[_File] = []
        for number, path in enumerate(paths, 1):
            progress(f"{number} of {len(paths)}: {path.name}")
            profile = _read(path, intake)
            if profile is not None:
                files.append(_File(path, profile))
        ranks = _ranks(files)
        files = _without_clashes(files, intake)
        _number(files)
        sizes = [
            max(1, size // replicas_of(f.profile)) for f in files for size in _sizes(f.profile)
        ]
        world = max([*sizes, *(rank + 1 for rank in ranks.values())], default=0)
        free = dict.fromkeys(ranks.values(), 1)
        made: list[pa.Table] = []
        for file in files:
            rank = ranks[file.worker]
            progress(f"rank {rank}: {file.path.name}")
            owner = Owner(intake.run_id, intake.attempt, rank, world, free[rank])
            made.append(span_rows(file.profile, file.steps, owner))
            free[rank] += len(made[-1])
        made = without_cut_calls(made, [file.steps for file in files])
        for file, rows in zip(files, made, strict=True):
            if not len(rows):
                intake.skip(file.path, "nothing in it that tracekit knows")
                continue
            intake.write("spans", rows, world)
            intake.took(file.path, self.name)
            if not file.steps:
                intake.note(file.path, "it shows no steps")
            _facts(file, ranks[file.worker], world, intake)


def _read(path: Path, intake: Intake) -> Profile | None:
    """Fold a file; None where there is nothing to use, which is said."""
    try:
        with open_space(path) as space:
            profile = read_profile(space)
            damaged = space.damaged_events
            wrong = space.wrong
    except (OSError, ValueError) as error:
        intake.skip(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
    if damaged:
        wrong.append(f"{damaged} events are damaged")
    if profile.empty:
        intake.skip(path, wrong[0] if wrong else "no host or device plane with events in it")
        return None
    for reason in wrong[:5]:
        intake.skip(path, f"a part of it: {reason}")
    if not profile.aligned:
        intake.note(path, "it does not say when it began; its times count from then")
    return profile


def _ranks(files: Sequence[_File]) -> dict[Worker, int]:
    """The rank of each worker: its place in the cluster, the chief first, else in order of name."""
    workers = {file.worker for file in files}
    if all(worker[0] == "task" for worker in workers):
        chief = any(worker[1] in ("chief", "master") for worker in workers)
        places = {
            worker: int(worker[2]) + (chief and worker[1] not in ("chief", "master"))
            for worker in workers
        }
        if len(set(places.values())) == len(workers):
            return places
    ordered = sorted(workers, key=lambda worker: [_natural(str(part)) for part in worker])
    return {worker: rank for rank, worker in enumerate(ordered)}


def _natural(text: str) -> list[tuple[int, str]]:
    """worker-2 comes before worker-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(text)]


def _without_clashes(files: Sequence[_File], intake: Intake) -> list[_File]:
    """Leave out what another file says of the same worker at the same time."""
    kept: list[_File] = []
    until: dict[Worker, tuple[int, Path]] = {}
    for file in sorted(files, key=lambda file: (file.profile.first_ns, file.path)):
        end, other = until.get(file.worker, (0, file.path))
        if file.profile.first_ns < end:
            intake.skip(file.path, f"of the same worker and time as {other}")
            continue
        until[file.worker] = file.profile.last_ns, file.path
        kept.append(file)
    return kept


def _number(files: Sequence[_File]) -> None:
    """Find the steps of all files; those without numbers are numbered session by session."""
    following, session = 0, list[_File]()
    end = 0
    for file in [*files, None]:
        if file is None or (session and file.profile.first_ns >= end):
            found = aligned([steps_of(one.profile) for one in session])
            lowest = min((s[0].number for s in found if s and s[0].counted), default=0)
            for one, steps in zip(session, found, strict=True):
                one.steps = [
                    replace(step, number=step.number - lowest + following) if step.counted else step
                    for step in steps
                ]
            numbers = [step.number for one in session for step in one.steps]
            following = max([following, *(number + 1 for number in numbers)])
            session, end = [], 0
        if file is not None:
            session.append(file)
            end = max(end, file.profile.last_ns)


def _sizes(profile: Profile) -> list[int]:
    """How many ranks the groups have."""
    replicas = replicas_of(profile)
    return [max(1, size // replicas) for size in profile.group_sizes.values()]


def replicas_of(profile: Profile) -> int:
    """Devices of one worker that take part in a collective."""
    devices = len({stream.device for stream in profile.streams if stream.nccl})
    return max([devices, *(call.replicas for call in profile.calls)], default=1) or 1


def _facts(file: _File, rank: int, world: int, intake: Intake) -> None:
    """Who a rank is, which clock it read, and what was read of it."""
    profile, host = file.profile, file.host
    owner = Owner(intake.run_id, intake.attempt, rank, world)
    domain = f"host:{host}" if profile.aligned else f"file:{file.path}"
    stem = file.path.name.removesuffix(_SUFFIX)
    facts: list[tuple[int | None, str | None, str, object]] = [
        (rank, host, "rank", {"rank": rank, "world_size": world, "host": host, "stem": stem}),
        (rank, host, "clock", {"domain": domain}),
        (
            rank,
            host,
            "import",
            {
                "path": str(file.path),
                "kind": "xplane",
                "events": profile.events,
                "steps": len(file.steps),
                "task": list(profile.task) if profile.task else None,
            },
        ),
    ]
    for key in profile.group_sizes:
        name, size = group_name(profile, key, owner, replicas_of(profile))
        ranks = list(range(size)) if size == world else []
        facts.append((rank, host, "group", {"id": name, "ranks": ranks, "name": f"group {key}"}))
    intake.write_facts(facts)

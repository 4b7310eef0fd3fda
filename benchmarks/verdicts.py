"""How often the demo's verdict is right: real trainings with real faults, on this machine.

    python benchmarks/verdicts.py --runs 10                      # all faults, ranks 0 and 2
    python benchmarks/verdicts.py --runs 30 --fault none
    python benchmarks/verdicts.py --fault forward --size 0.1     # recall of smaller faults

A run is right when it names the rank, nobody else, and the cause; on a healthy run, when it
names nobody and finds nothing critical. It is wrong when it names another rank or another cause,
else silent. Runs that were not right are kept, with their verdict, for a look.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

SLOW = ("data", "forward", "backward", "optimizer", "checkpoint", "gc")
ENDS = {"hang": "hang.", "kill": "crash.killed"}
OUTCOMES = ("right", "wrong", "silent", "failed")
ACCUSATIONS = ("straggler.rank", "straggler.intermittent", "straggler.stage")


@dataclass(frozen=True)
class Case:
    """One kind of demo; ``rank`` is None for a healthy one."""

    kind: str
    rank: int | None
    batchnorm: bool

    def __str__(self) -> str:
        fault = self.kind if self.rank is None else f"{self.kind}:{self.rank}"
        return f"{fault:13} {'BatchNorm' if self.batchnorm else 'plain':9}"


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for kind, batchnorm in itertools.product(options.fault, options.batchnorm):
        for rank in [None] if kind == "none" else options.rank:
            yield Case(kind, rank, batchnorm)


def accused(verdict: dict[str, Any]) -> dict[int, set[str | None]]:
    """The ranks that are made responsible, with the causes named."""
    found: dict[int, set[str | None]] = defaultdict(set)
    for straggler in verdict["stragglers"]:
        found[straggler["rank"]].add(straggler["cause"])
    for finding in verdict["findings"]:
        if finding["id"] in ACCUSATIONS:
            for rank in finding["ranks"]:
                found[rank].add(finding.get("cause"))
    return found


def judge(case: Case, verdict: dict[str, Any]) -> str:
    findings = verdict["findings"]
    if case.kind in ENDS:
        named = {tuple(f["ranks"]) for f in findings if f["id"].startswith(("hang.", "crash."))}
        right = {tuple(f["ranks"]) for f in findings if f["id"].startswith(ENDS[case.kind])}
        if named == right == {(case.rank,)}:
            return "right"
        return "wrong" if named else "silent"
    named_ranks = accused(verdict)
    if case.rank is None:
        critical = any(finding["severity"] == "critical" for finding in findings)
        return "wrong" if named_ranks or critical else "right"
    if not named_ranks:
        return "silent"
    causes = named_ranks.pop(case.rank, set()) - {None}
    return "right" if not named_ranks and causes == {case.kind} else "wrong"


def demo(case: Case, run_dir: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """The verdict of one demo; None, with the reason on stderr, when there was none."""
    command = [sys.executable, "-m", "tracekit", "demo", "--format", "json", "-o", str(run_dir)]
    command += ["--steps", str(options.steps), "--ranks", str(options.ranks)]
    command += ["--size", str(options.size), "--every", str(options.every)]
    command += ["--batchnorm" if case.batchnorm else "--no-batchnorm"]
    if case.rank is not None:
        command += ["--fault", f"{case.kind}:{case.rank}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}", file=sys.stderr)
        return None
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


def told(verdict: dict[str, Any]) -> str:
    """The verdict in a few words."""
    findings = verdict["findings"]
    return "; ".join(f"{f['id']} {f['severity']} {f['ranks']} {f.get('cause')}" for f in findings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fault", nargs="+", default=["none", *SLOW])
    parser.add_argument("--rank", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--batchnorm", nargs="+", type=int, default=[1, 0], choices=[1, 0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", type=float, default=0.4)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="where runs that were not right are kept")
    parser.add_argument("--all", action="store_true", help="keep the right ones too")
    options = parser.parse_args()
    keep = options.keep or Path(tempfile.mkdtemp(prefix="verdicts-"))
    keep.mkdir(parents=True, exist_ok=True)
    judged: dict[Case, list[str]] = defaultdict(list)
    steps: dict[Case, list[float]] = defaultdict(list)
    for number, case in itertools.product(range(options.runs), list(cases(options))):
        name = "-".join(str(case).replace(":", "-").split())
        run_dir = keep / f"{name}-{number}-{os.getpid()}"
        begin = time.monotonic()
        verdict = demo(case, run_dir, options)
        if verdict is None:
            judged[case].append("failed")
            continue
        outcome = judge(case, verdict)
        judged[case].append(outcome)
        step_ms = verdict["step_ms"]["median"] or 0.0
        steps[case].append(step_ms)
        took, load = time.monotonic() - begin, os.getloadavg()[0]
        line = f"{case} {outcome:6} step {step_ms:5.1f} ms, demo {took:4.1f} s, load {load:.1f}"
        print(f"{line}: {told(verdict)}", flush=True)
        if outcome == "right" and not options.all:
            shutil.rmtree(run_dir)
        else:
            run_dir.with_suffix(".json").write_text(json.dumps(verdict))
    print(f"\n{'fault':13} {'model':9} right wrong silent failed  median step")
    for case, outcomes in judged.items():
        right, wrong, silent, failed = (outcomes.count(one) for one in OUTCOMES)
        times = steps[case] or [0.0]
        step = f"{median(times):.1f} ms ({min(times):.1f} to {max(times):.1f})"
        print(f"{case} {right:5} {wrong:5} {silent:6} {failed:6}  {step}")
    if any(keep.iterdir()):
        print(f"\nkept: {keep}")
    else:
        keep.rmdir()


if __name__ == "__main__":
    main()

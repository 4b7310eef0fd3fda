"""``tracekit demo``: a real training with a real fault on this machine, then its analysis."""

from __future__ import annotations

import re
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._analysis import analyze_and_report
from tracekit.cli._demo.launch import run_training
from tracekit.cli._demo.options import KINDS, Training, parse_faults
from tracekit.cli._options import Format
from tracekit.cli._terminal import progress, tell
from tracekit.errors import InputError, MissingDependency, UsageError

__all__ = ["command"]


def command(
    ranks: Annotated[int, typer.Option(min=1, help="Processes to train with.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Steps to train.")] = 60,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:RANK", help=f"What goes wrong, and where: {' '.join(KINDS)}. Repeatable."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="The run directory; else in runs."),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print the verdict.")] = Format.text,
    batchnorm: Annotated[
        bool, typer.Option(help="Train a model with BatchNorm: DDP broadcasts its buffers.")
    ] = True,
    size: Annotated[
        float, typer.Option(min=0.0, help="What a fault costs, as a share of the healthy step.")
    ] = 0.4,
    every: Annotated[
        int, typer.Option(min=1, help="Steps from one slow checkpoint or collection to the next.")
    ] = 4,
    launcher_word: Annotated[bool, typer.Option(hidden=True)] = True,
) -> int:
    """Train on this machine with several processes, make one of them go wrong, and find it."""
    faults = parse_faults(fault or [], ranks)
    if find_spec("torch") is None:
        raise MissingDependency("torch", "torch")
    run_dir = _new_directory(output)
    training = Training(ranks, steps, faults, size, every, batchnorm)
    with progress() as say:
        outcome = run_training(training, run_dir, say, launcher_word)
    if not (run_dir / "attempt-000").is_dir():
        last = outcome.output.strip().splitlines()[-1:] or ["no output"]
        raise InputError(run_dir, f"the training did not begin: {last[0]}")
    unexpected = outcome.returncode not in (0, None) and not any(f.kind == "kill" for f in faults)
    if unexpected:
        tell(f"the training failed, see {run_dir / 'attempt-000' / 'launcher.log'}")
    code = analyze_and_report([run_dir], format=format)
    tell(f"the run is in {run_dir}: tracekit analyze {run_dir}")
    return code


def _new_directory(output: Path | None) -> Path:
    """Make the directory the run will lie in, unless something is there."""
    path = (output or Path("runs") / f"demo-{secrets.token_hex(4)}").absolute()
    if re.sub(r"[^A-Za-z0-9._-]", "-", path.name).strip("-.") != path.name:
        raise UsageError(f"{path}: the name of a run is made of letters, digits, . _ and -")
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise UsageError(f"{path}: is not empty; the demo needs a directory of its own")
    return path

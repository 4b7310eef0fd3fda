"""From run directories to a report and an exit code; the demo and ``analyze`` share it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli._beside import KINDS, add_beside
from tracekit.cli._dumps import add_dumps
from tracekit.cli._foreign import imported, is_run, look_into
from tracekit.cli._nccl_logs import add_nccl_logs
from tracekit.cli._options import FailOn, Format
from tracekit.cli._output import write_result
from tracekit.cli._run_logs import add_launcher_logs
from tracekit.cli._terminal import tell
from tracekit.cli._windows import adopt_windows
from tracekit.errors import InputError, MissingDependency, TracekitError
from tracekit.findings import Severity

if TYPE_CHECKING:
    from tracekit.analysis import Analysis, Options
    from tracekit.dataset import Coverage, Run

__all__ = ["analyze_and_report"]


def analyze_and_report(
    paths: Sequence[Path],
    format: Format = Format.text,
    output: Path | None = None,
    fail_on: FailOn | None = None,
    options: Options | None = None,
) -> int:
    """Analyze each run and print the verdicts; one that cannot be read does not stop the rest.

    Returns 2 where a run could not be read, else 1 where a finding is as severe as ``fail_on``,
    else 0.
    """
    done = [*_all_analyzed(paths, options)]
    errors = [one for one in done if isinstance(one, TracekitError)]
    results = [one for one in done if not isinstance(one, TracekitError)]
    if len(errors) == len(done) == 1:
        raise errors[0]
    for error in errors:
        tell(str(error))
    if results:
        write_result(_told(results, format, len(done) > 1, output is None), output)
    if errors:
        return errors[0].exit_code
    return int(fail_on is not None and any(_fails(result, fail_on) for result in results))


def _all_analyzed(
    paths: Sequence[Path], options: Options | None
) -> Iterator[Analysis | TracekitError]:
    """Each run, and what is in all foreign files together."""
    foreign: list[Path] = []
    kinds: set[str] = set()
    runs: list[Path | InputError] = []
    for path in paths:
        known = {} if is_run(path) or not path.exists() else look_into([path]).found.by_kind
        if known:
            foreign.append(path)
            kinds |= {*known}
        elif path.is_file():
            runs.append(InputError(path, "neither a run directory nor a file of a known kind"))
        else:
            runs.append(path)
    together = len(runs) == 1 and bool(foreign) and kinds <= KINDS
    for run in runs:
        done = (
            run
            if isinstance(run, InputError)
            else _analyzed(run, options, sorted(foreign) if together else ())
        )
        together = together and not isinstance(done, TracekitError)
        yield done
    if foreign and not together:
        yield _analyzed_foreign(sorted(foreign), options)


def _analyzed(
    path: Path, options: Options | None, beside: Sequence[Path] = ()
) -> Analysis | TracekitError:
    """The verdict over a run, with what foreign files tell of the same job."""
    from tracekit.dataset import open_run

    try:
        skipped = adopt_windows(path)
        with open_run(path) as run:
            coverage = replace(run.coverage, skipped=(*run.coverage.skipped, *skipped))
            add_launcher_logs(run)
            more = (*add_nccl_logs(run), *add_dumps(run))
            coverage = replace(coverage, skipped=(*coverage.skipped, *more))
            where = shlex.quote(str(path))
            if not beside:
                return _verdict(run, coverage, options, where)
            with imported(look_into(beside)) as made, open_run(made.run_dir) as foreign:
                tell(made.told)
                unused = add_beside(run, foreign)
                skipped = [*coverage.skipped, *made.intake.skipped, *unused]
                coverage = replace(
                    coverage, files=coverage.files + made.found.files, skipped=tuple(skipped)
                )
                return _verdict(run, coverage, options, where)
    except MissingDependency:
        raise
    except TracekitError as error:
        return error


def _analyzed_foreign(paths: Sequence[Path], options: Options | None) -> Analysis | TracekitError:
    from tracekit.dataset import open_run

    try:
        with imported(look_into(paths)) as made, open_run(made.run_dir) as run:
            tell(made.told)
            where = " ".join(shlex.quote(str(path)) for path in paths)
            return _verdict(run, made.coverage(run.coverage), options, where)
    except MissingDependency:
        raise
    except TracekitError as error:
        return error


def _verdict(run: Run, coverage: Coverage, options: Options | None, where: str) -> Analysis:
    from tracekit.analysis import analyze
    from tracekit.dataset.engine import DuckDB

    with DuckDB() as engine:
        for name, source in run.sources.items():
            engine.register(name, source)
        return analyze(engine, coverage, options, where)


def _told(results: Sequence[Analysis], format: Format, several: bool, on_stdout: bool) -> str:
    """One run is told as it is, several as one list of them."""
    from tracekit import report

    if format is Format.json:
        if not several:
            return report.json(results[0]).decode() + "\n"
        whole = {"schema": 1, "runs": [report.json_object(result) for result in results]}
        return json.dumps(whole, allow_nan=False) + "\n"
    terminal = on_stdout and sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, 140) if terminal else 100
    return "\n".join(report.text(result, width, color=terminal) for result in results)


def _fails(result: Analysis, fail_on: FailOn) -> bool:
    least = Severity(fail_on.value).weight
    return any(finding.severity.weight >= least for finding in result.findings)

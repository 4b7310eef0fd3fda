"""From run directories to a report and an exit code; the demo and ``analyze`` share it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli._options import FailOn, Format
from tracekit.cli._output import write_result
from tracekit.cli._terminal import tell
from tracekit.errors import MissingDependency, TracekitError
from tracekit.findings import Severity

if TYPE_CHECKING:
    from tracekit.analysis import Analysis, Options

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
    from tracekit.report import to_json, to_text

    done = [_analyzed(path, options) for path in paths]
    errors = [one for one in done if isinstance(one, TracekitError)]
    results = [one for one in done if not isinstance(one, TracekitError)]
    if len(errors) == len(paths) == 1:
        raise errors[0]
    for error in errors:
        tell(str(error))
    if results:
        render = to_json if format is Format.json else to_text
        write_result(render(results), output)
    if errors:
        return errors[0].exit_code
    return int(fail_on is not None and any(_fails(result, fail_on) for result in results))


def _analyzed(path: Path, options: Options | None) -> Analysis | TracekitError:
    from tracekit.analysis import Options, analyze
    from tracekit.dataset import open_run

    try:
        with open_run(path) as run:
            return analyze(run, options or Options())
    except MissingDependency:
        raise
    except TracekitError as error:
        return error


def _fails(result: Analysis, fail_on: FailOn) -> bool:
    least = Severity(fail_on.value).weight
    return any(finding.severity.weight >= least for finding in result.findings)

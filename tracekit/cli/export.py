"""``tracekit export``: a run in the format of another tool."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._options import parse_steps
from tracekit.cli._terminal import tell
from tracekit.errors import UsageError

__all__ = ["command"]


class Target(str, Enum):
    """What the run is exported to."""

    chrome = "chrome"
    perfetto = "perfetto"
    otlp = "otlp"
    otlp_json = "otlp-json"


class Protocol(str, Enum):
    """How OTLP is spoken."""

    http = "http/protobuf"
    grpc = "grpc"


_TIMELINE, _OTLP = "Timelines", "OpenTelemetry"
_TO = "Chrome's JSON, Perfetto's own format, a server that speaks OTLP, or OTLP as JSON lines."


def command(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    to: Annotated[Target, typer.Option(help=_TO)],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to a file, not to stdout."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only steps A to B, as in 10:50, 10: or :50.")
    ] = None,
    max_spans: Annotated[
        int, typer.Option(min=1, help="Refuse more spans and events than that.")
    ] = 1_000_000,
    per_rank: Annotated[
        bool,
        typer.Option(
            "--per-rank",
            help="A TAR with a file a rank; so is FILE when it ends in .tar.",
            rich_help_panel=_TIMELINE,
        ),
    ] = False,
    min_wait: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Draw no arrow for waits of fewer milliseconds.",
            rich_help_panel=_TIMELINE,
        ),
    ] = 0.1,
    max_arrows: Annotated[
        int,
        typer.Option(
            min=0, help="Of more waits than that, draw the longest.", rich_help_panel=_TIMELINE
        ),
    ] = 20_000,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where to; else $OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318.",
            rich_help_panel=_OTLP,
        ),
    ] = None,
    protocol: Annotated[
        Protocol | None,
        typer.Option(help="Else $OTEL_EXPORTER_OTLP_PROTOCOL.", rich_help_panel=_OTLP),
    ] = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Move the run so that it ends now: backends search recent time first.",
            rich_help_panel=_OTLP,
        ),
    ] = False,
) -> int:
    """Write a run in the format of another tool, or send it there.

    As a timeline every rank is a process and every lane a track. By OTLP every step is a trace of
    all ranks. In both, arrows or links lead to the rank that came last to a collective.
    """
    from tracekit.dataset import open_run
    from tracekit.exporters.chrome_trace import Choice

    if output is None and to is not Target.otlp and sys.stdout.isatty():
        raise UsageError("say where to write it: -o FILE")
    if output is not None and to is Target.otlp:
        raise UsageError("--to otlp goes to a server, not to a file: --to otlp-json writes one")
    per_rank = per_rank or (output is not None and output.suffix == ".tar")
    if per_rank and to is not Target.perfetto:
        raise UsageError("only Perfetto reads a TAR of ranks: --to perfetto")
    first, last = parse_steps(steps)
    choice = Choice(first, last, max_spans, round(min_wait * 1e6), max_arrows)
    settings = None
    if to is Target.otlp:
        from tracekit.exporters.otlp import read_settings

        how = None if protocol is None else protocol.value
        settings = read_settings("traces", endpoint=endpoint, protocol=how)
    with open_run(run) as opened:
        for path, reason in opened.coverage.skipped:
            tell(f"{path}: {reason}; left out")
        if settings is not None:
            from tracekit.cli._export.otlp import send

            send(opened, choice, settings, now)
        elif to is Target.otlp_json:
            from tracekit.cli._export.otlp import write_json

            write_json(opened, choice, output, now)
        else:
            from tracekit.cli._export.timeline import write_timeline

            write_timeline(opened, output, choice, to is Target.perfetto, per_rank)
    return 0

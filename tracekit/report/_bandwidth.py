"""The table of what was measured of collectives, with and without the wait that is in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from tracekit.findings import say
from tracekit.findings.result import CollectiveSummary

__all__ = ["bandwidth_table"]

_ROWS = 12


def bandwidth_table(
    measured: Sequence[CollectiveSummary],
    translate: Callable[[str], str],
    size: Callable[[float], str],
) -> Table:
    """A row for each operation of a communicator and size, the most costly first."""
    table = Table(
        title=Text(translate(say("report.bandwidth")), style="bold"), title_justify="left",
        box=None, padding=(0, 1), header_style="dim", pad_edge=True,
    )  # fmt: skip
    for name in ("op", "group", "size", "count", "bytes", "call", "busbw", "busbw_wait"):
        left = name in ("op", "group")
        table.add_column(translate(say(f"column.{name}")), justify="left" if left else "right")
    ordered = sorted(measured, key=lambda one: -(one.call_ms or 0.0) * one.count)
    for one in ordered[:_ROWS]:
        table.add_row(
            one.op, one.group, str(one.group_size), str(one.count),
            size(one.bytes / one.count) if one.count else "–",
            *(
                "–" if value is None else f"{value:.3g}"
                for value in (one.call_ms, one.busbw_gbs, one.busbw_with_wait_gbs)
            ),
        )  # fmt: skip
    return table

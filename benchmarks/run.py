"""All benchmarks, each in a process of its own, as one table.

    python benchmarks/run.py                     # quick: minutes
    python benchmarks/run.py --long              # as docs/benchmarks.md has it: an hour or more
    python benchmarks/run.py span_cost kill      # some of them

A bar is a ratio or a share where it can be: of things measured side by side in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

BENCHMARKS = (
    "span_cost",
    "training_cost",
    "ddp_cost",
    "communication",
    "convert",
    "analysis",
    "otlp",
    "kill",
    "flight_recorder",
    "nccl_log",
    "text_logs",
    "xplane",
    "tensorflow_cost",
)
ROOT = Path(__file__).resolve().parents[1]
ANSWERS = {True: "yes", False: "NO", None: "-"}


def run(name: str, long: bool) -> list[dict[str, Any]]:
    """The rows of one benchmark."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *(["--long"] if long else [])]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        rows.append({"what": name, "measured": f"failed: exit {done.returncode}", "holds": False})
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table of Markdown, which is also what a terminal can show."""
    columns = ("what", "measured", "bar", "reached")
    cells = [columns] + [
        (row["what"], row["measured"], row.get("bar") or "", ANSWERS[row.get("holds")])
        for row in rows
    ]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    for number, line in enumerate(cells):
        print("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=textwrap.dedent(__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}")
    rows: list[dict[str, Any]] = []
    for name in options.names or BENCHMARKS:
        rows += run(name, options.long)
    cores = len(os.sched_getaffinity(0))
    print(f"Python {platform.python_version()}, {cores} cores, {platform.machine()}\n")
    show(rows)
    return int(any(row.get("holds") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""What a benchmark says: one row of the table for each bar."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

__all__ = ["Row", "main"]


@dataclass(frozen=True)
class Row:
    """``holds`` is None where there is no bar, or where the machine was too noisy to tell."""

    what: str
    measured: str
    bar: str = ""
    holds: bool | None = None


def main(benchmark: Callable[[bool], Iterator[Row]], doc: str | None) -> None:
    """Run one benchmark; its rows go to stdout as lines of JSON, which ``run.py`` reads."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--long", action="store_true", help="as many repetitions as a bar needs")
    long = parser.parse_args().long
    for row in benchmark(long):
        print(json.dumps(asdict(row)), flush=True)

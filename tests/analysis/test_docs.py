"""The documents say what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tracekit.analysis import Options
from tracekit.findings import IDS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_option_is_in_the_table_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (DOCS / "numbers.md").read_text(), re.M)
    table = {name: default.strip().replace(",", "") for name, default in rows}
    options = Options()
    assert list(table) == [field.name for field in dataclasses.fields(options)]
    for name, default in table.items():
        value = getattr(options, name)
        assert value is None if default == "none" else float(default) == value


def test_every_finding_is_described_once() -> None:
    described = re.findall(r"^\| `([a-z]+\.[a-z_]+)` \|", (DOCS / "findings.md").read_text(), re.M)
    assert sorted(described) == sorted(IDS)

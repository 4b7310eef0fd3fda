"""The documents say what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tracekit.analysis import Options
from tracekit.findings import IDS
from tracekit.findings.causes import CAUSES
from tracekit.findings.words import WORDS

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


def test_every_class_of_causes_is_described_as_it_is_told() -> None:
    text = (DOCS / "findings.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.M)
    described = {name: (means, ids, effects) for name, means, ids, effects in rows}
    assert list(described)[1:] == list(CAUSES)  # the first one is the head of the table
    for name, cause in CAUSES.items():
        ids = ", ".join(f"`{id_}`" for id_ in cause.ids)
        assert described[name] == (cause.means, ids, ", ".join(sorted(cause.explains)) or "–")


def test_causes_are_told_under_known_findings_and_explain_known_classes() -> None:
    for cause in CAUSES.values():
        assert set(cause.ids) <= set(IDS)
        assert cause.explains <= set(CAUSES)
        assert set(cause.next) <= set(WORDS)


def test_no_two_classes_explain_each_other() -> None:
    for name, cause in CAUSES.items():
        assert all(name not in CAUSES[other].explains for other in cause.explains), name

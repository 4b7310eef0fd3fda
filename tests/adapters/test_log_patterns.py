"""No pattern that reads a log can take longer than a line is long: repetitions are bounded, and
none that varies is inside of another without something fixed before it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest

from tracekit.adapters import nccl_inspector, nccl_log, nccl_ras, nccl_tests, text_logs
from tracekit.adapters.nccl_ras import _text as ras_text
from tracekit.adapters.text_logs._patterns import table

_LONGEST = 20_000
"""A repetition that may take a whole line, as it was cut."""


def modules() -> Iterator[ModuleType]:
    yield nccl_tests
    for package in (nccl_inspector, nccl_log, nccl_ras, text_logs):
        for found in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"{package.__name__}.{found.name}")


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    for module in modules():
        for name, value in vars(module).items():
            for number, one in enumerate(value if isinstance(value, tuple) else (value,)):
                if isinstance(one, re.Pattern):
                    yield f"{module.__name__}.{name}.{number}", one
    for name, one in ras_text._patterns():
        yield f"ras.{name}", one
    yield "ras.managed", ras_text._managed()
    for row in table().rows:
        yield f"patterns.{row.name}", row.pattern
    for name, one in table().doings:
        yield f"patterns.{name}", one


def faults(parts: Sequence[tuple[Any, Any]], inside: bool = False) -> Iterator[str]:
    """What in a pattern may cost more than the length of a line."""
    for kind, value in parts:
        if kind in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, repeated = value
            if most is codes.MAXREPEAT or most > _LONGEST:
                yield "a repetition without a bound"
            varies = least != most and most > 1
            if inside and varies:
                yield "a repetition inside of one that begins with anything"
            fixed = repeated[0][0] in (codes.LITERAL, codes.NOT_LITERAL) and len(repeated) > 1
            yield from faults(list(repeated), (inside or varies) and not fixed)
        elif kind is codes.SUBPATTERN:
            yield from faults(list(value[-1]), inside)
        elif kind is codes.BRANCH:
            for branch in value[1]:
                yield from faults(list(branch), inside)
        elif kind in (codes.ASSERT, codes.ASSERT_NOT):
            yield from faults(list(value[1]), inside)


@pytest.mark.parametrize(("name", "pattern"), dict(patterns()).items())
def test_every_pattern_is_bounded(name: str, pattern: re.Pattern[Any]) -> None:
    assert [*faults(list(parser.parse(pattern.pattern, pattern.flags)))] == []


@pytest.mark.parametrize(
    "pattern", [r"a*b", r"(?:a{1,9}b?){1,9}c", r"(?:x|y{2,})z", r"(?=.*b)", r"[ab]+$"]
)
def test_what_is_not_bounded_is_found(pattern: str) -> None:
    assert [*faults(list(parser.parse(pattern)))]


def test_most_patterns_are_looked_at() -> None:
    assert len(dict(patterns())) > 100

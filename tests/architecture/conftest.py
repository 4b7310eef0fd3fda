"""The package's own source, parsed once for all architecture tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.source import Source

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> dict[str, Source]:
    """All modules of the package by name, those behind the links included."""
    found = {}
    for folder in ("tracekit", "tracekit/adapters", "tracekit/exporters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Source(name, path, ast.parse(path.read_text(), str(path)))
    return found

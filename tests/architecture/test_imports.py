"""Imports run one way, in no circle, and recording needs nothing but Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.source import Source


def test_layers_only_look_down(root: Path) -> None:
    lint = "from importlinter.cli import lint_imports_command as lint; lint()"
    done = run_python(lint, "--no-cache", cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_modules_import_each_other(sources: Mapping[str, Source]) -> None:
    graph = {name: set(targets(source, sources)) for name, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]))


def test_nothing_inside_imports_the_root(sources: Mapping[str, Source]) -> None:
    """The root re-exports; whoever imports it from inside drags everything in."""
    inside = {name for name in sources if name not in ("tracekit", "tracekit.__main__")}
    assert [name for name in inside if "tracekit" in targets(sources[name], sources)] == []


def targets(source: Source, sources: Mapping[str, Source]) -> list[str]:
    """The project's modules that an import of this one runs (implied parents left out)."""
    named = [name for name in source.imports() if name.split(".")[0] == "tracekit"]
    return [name if name in sources else name.rpartition(".")[0] for name in named]


@pytest.mark.parametrize("module", ["tracekit", "tracekit.recorder", "tracekit.session"])
def test_recording_loads_the_standard_library_alone(module: str, root: Path) -> None:
    code = f"import sys; old = set(sys.modules); import {module}; print(*set(sys.modules) - old)"
    done = run_python(code, cwd=root)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded - sys.stdlib_module_names == {"tracekit"}


def run_python(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

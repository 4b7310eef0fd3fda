"""The rules of docs/architecture.md that a machine can hold."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.architecture.source import Source

LONGEST_MODULE = 450


Sources = Mapping[str, Source]


@pytest.mark.parametrize("folder", ["adapters", "exporters"])
def test_plugin_folders_are_links_into_the_package(folder: str, root: Path) -> None:
    link = root / "tracekit" / folder
    assert link.is_symlink(), (
        f"tracekit/{folder} is not a link, so the package is built without {folder}."
        f" Type: git config core.symlinks true && rm -rf tracekit/{folder}"
        f" && git checkout -- tracekit/{folder}"
    )
    assert link.resolve() == root / folder


@pytest.mark.parametrize("name", ["adapters", "exporters"])
def test_plugin_folders_are_imported_through_the_package(name: str, root: Path) -> None:
    """A plain import would make a second copy of every class."""
    files = [
        path
        for folder in ("tracekit", "adapters", "exporters", "tests", "examples", "benchmarks")
        for path in (root / folder).rglob("*.py")
    ]
    plain = [
        path.relative_to(root)
        for path in files
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == name)
        or (
            isinstance(node, ast.Import)
            and any(alias.name.split(".")[0] == name for alias in node.names)
        )
    ]
    assert plain == []


def test_every_folder_with_modules_is_a_package(sources: Sources) -> None:
    folders = {source.path.parent for source in sources.values()}
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_every_module_says_what_it_is_for(sources: Sources) -> None:
    assert [name for name, source in sources.items() if not ast.get_docstring(source.tree)] == []


def test_modules_answer_one_question(sources: Sources) -> None:
    lengths = {name: len(source.path.read_text().splitlines()) for name, source in sources.items()}
    assert {name: n for name, n in lengths.items() if n > LONGEST_MODULE} == {}


def test_packages_list_what_they_export(sources: Sources) -> None:
    """``__all__`` is complete and in order: constants, classes, functions."""
    for name, source in sources.items():
        reexported = {
            alias.asname or alias.name
            for node in source.tree.body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(name)
            for alias in node.names
        }
        if source.is_package and reexported:
            exported = importlib.import_module(name).__all__
            assert list(exported) == sorted(exported, key=constants_first), name
            assert reexported - {n for n in reexported if n.startswith("_")} <= set(exported), name


def constants_first(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)

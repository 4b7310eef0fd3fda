"""One module of the package as the architecture tests see it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """One module of the package: its import name, its file and its syntax tree."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def imports(self) -> Iterator[str]:
        """The dotted names this module imports when it is imported, as ``module.attribute``."""
        for node in at_import_time(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs on import: no function bodies and nothing meant for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from at_import_time(node)

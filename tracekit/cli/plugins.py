"""``tracekit plugins``: which adapters and exporters there are, and what they need."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tracekit.cli._options import Format
from tracekit.cli._plugin_table import Plugin, list_plugins

__all__ = ["command"]


def command(
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.text,
) -> int:
    """List the adapters and exporters, those of other packages too."""
    plugins = list_plugins()
    if format is Format.json:
        typer.echo(json.dumps({"schema": 1, "plugins": [plugin.as_dict() for plugin in plugins]}))
    else:
        for plugin in plugins:
            typer.echo(f"{plugin.shape:9} {plugin.name:12} {_state(plugin):14} {plugin.purpose}")
    return 0


def _state(plugin: Plugin) -> str:
    if plugin.origin != "tracekit":
        return plugin.origin
    return "ready" if not plugin.missing else f"needs {', '.join(plugin.missing)}"

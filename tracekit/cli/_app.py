"""The sub-commands joined into one program."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli import agent, analyze, collect, compact, demo, export, import_, plugins, run

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="The black box of distributed training: what every rank did, and why the others waited.",
)


def _version(asked: bool) -> None:
    if asked:
        from tracekit import __version__

        typer.echo(f"tracekit {__version__}")
        raise typer.Exit()


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


for command in (demo, run, analyze, import_, export, compact, collect, agent, plugins):
    settings = getattr(command, "settings", {})
    app.command(command.__name__.rpartition(".")[2].rstrip("_"), **settings)(command.command)

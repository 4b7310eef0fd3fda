"""``tracekit run``: a script as it is, traced."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli._run.launch import run_target
from tracekit.cli._run.target import Target
from tracekit.errors import UsageError

__all__ = ["command", "settings"]

settings = {"context_settings": {"allow_extra_args": True, "allow_interspersed_args": False}}


def command(
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(metavar="SCRIPT [ARGUMENTS]…", help="What follows SCRIPT belongs to it."),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does."),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option("-o", "--dir", metavar="DIR", help="Where runs lie; else $TRACEKIT_DIR."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--run", metavar="LABEL", help="What to call it; else $TRACEKIT_RUN."),
    ] = None,
    nccl_log: Annotated[
        bool, typer.Option("--nccl-log", help="Let NCCL write its log into the run.")
    ] = False,
) -> int:
    """Run a training script under any launcher, as it is, and trace it.

    torchrun --nproc-per-node 8 -m tracekit run train.py --epochs 3
    """
    # main() comes here for the help only; it reads the rest without typer, which a job may lack.
    if script is None and module is None:
        raise UsageError("run: say which script, or -m which module")
    arguments = [*([script] if script is not None and module is not None else []), *context.args]
    return run_target(
        Target(
            script=script if module is None else None,
            module=module,
            arguments=tuple(arguments),
            directory=directory,
            label=label,
            nccl_log=nccl_log,
        )
    )

"""Starting the agent so that it outlives the job and the job never notices it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tracekit.recorder import say_once

__all__ = ["launch_agent"]


def launch_agent(run_dir: Path, arguments: Sequence[str]) -> bool:
    """Start an agent for a run in a session of its own; False, said once, where that fails."""
    environment = dict(os.environ)
    package = str(Path(__file__).resolve().parents[2])
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([package, inherited] if inherited else [package])
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "tracekit.agent", str(run_dir), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
            close_fds=True,
        )
    except (OSError, ValueError) as error:
        say_once(f"no agent runs, the journals are read later: {error}")
        return False
    process.returncode = 0  # it outlives us: no warning that it still runs
    return True

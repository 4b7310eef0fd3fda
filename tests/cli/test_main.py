"""What every sub-command has in common: exit codes, one clear line, and what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tests.cli.conftest import Call

WITHOUT = (
    "import sys; sys.modules[{!r}] = None; from tracekit.cli import main; sys.exit(main({!r}))"
)


def test_version_is_told(call: Call) -> None:
    assert call("--version").out == f"tracekit {tracekit.__version__}\n"


def test_help_names_every_command(call: Call) -> None:
    shown = call("--help")
    assert shown.code == 0
    for command in ("demo", "run", "analyze", "compact", "collect", "agent", "plugins"):
        assert command in shown.out


@pytest.mark.parametrize(
    "command", ["demo", "run", "analyze", "compact", "collect", "agent", "plugins"]
)
def test_every_command_explains_itself(call: Call, command: str) -> None:
    shown = call(command, "--help")
    assert shown.code == 0
    assert f"tracekit {command}" in shown.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing"], "No such command"),
        (["plugins", "--loud"], "--loud"),
        (["analyze"], "PATH"),
        (["demo", "--ranks", "0"], "--ranks"),
        (["demo", "--format", "pdf"], "pdf"),
        (["demo", "--fault", "slow:1"], "the kinds are none data"),
        (["demo", "--fault", "gc:4"], "the ranks are 0 to 3"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(call: Call, arguments: list[str], reason: str) -> None:
    refused = call(*arguments)
    assert refused.code == 2
    assert reason in refused.line
    assert refused.line.startswith("tracekit: ")
    assert refused.out == ""


def test_no_command_shows_the_help(call: Call) -> None:
    shown = call()
    assert shown.code == 2
    assert shown.out == call("--help").out
    assert shown.err == ""


def test_without_typer_the_line_says_what_to_install(python: Call) -> None:
    refused = python(WITHOUT.format("typer", ["plugins"]))
    assert refused.code == 2
    assert "typer is not installed: pip install 'tracekit-blackbox[analyze]'" in refused.line


def test_without_torch_the_demo_says_what_to_install(python: Call, tmp_path: Path) -> None:
    refused = python(WITHOUT.format("torch", ["demo", "-o", str(tmp_path / "run")]))
    assert refused.code == 2
    assert "torch is not installed: pip install 'tracekit-blackbox[torch]'" in refused.line
    assert not (tmp_path / "run").exists()


def test_the_module_is_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tracekit", "analyze", str(tmp_path / "gone")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"tracekit: {tmp_path / 'gone'}: does not exist\n"


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m tracekit plugins | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

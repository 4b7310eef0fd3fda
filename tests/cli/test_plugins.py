"""``tracekit plugins`` lists what is there without importing it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tracekit.cli._plugin_table import BUILT_IN

ROOT = Path(__file__).parents[2]


def test_every_plug_in_is_in_the_table() -> None:
    found = {
        f"tracekit.{folder}.{path.stem}"
        for folder in ("adapters", "exporters")
        for path in (ROOT / folder).iterdir()
        if path.name != "__pycache__" and not path.name.startswith(("_", "."))
    }
    assert found == {plugin.module for plugin in BUILT_IN}


def test_the_table_is_sorted() -> None:
    keys = [(plugin.shape, plugin.name) for plugin in BUILT_IN]
    assert keys == sorted(keys)


def test_each_is_listed_with_what_it_is_for(call: Call) -> None:
    shown = call("plugins")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert len(lines) >= len(BUILT_IN)
    assert any(line.startswith("adapter   torch") and "traces PyTorch" in line for line in lines)


def test_json_is_one_object(call: Call) -> None:
    listed = json.loads(call("plugins", "--format", "json").out)
    torch = next(plugin for plugin in listed["plugins"] if plugin["name"] == "torch")
    assert torch["module"] == "tracekit.adapters.torch"
    assert isinstance(torch["importable"], bool)


def test_what_is_missing_is_named(python: Call) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from tracekit.cli import main; main(['plugins'])"
    )
    assert "needs torch" in python(code).out


def test_plug_ins_of_others_are_listed_and_not_imported(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tracekit.adapters]\nodd = no_such_module:attach\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "odd" in call("plugins").out
    assert "theirs" in call("plugins").out

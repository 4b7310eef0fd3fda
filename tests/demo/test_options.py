"""What a fault may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.cli import main
from tracekit.cli._demo.options import Fault, Training, parse_faults
from tracekit.errors import UsageError


def test_faults_are_kind_and_rank() -> None:
    assert parse_faults(["forward:2", "gc:0"], 4) == (Fault("forward", 2), Fault("gc", 0))


@pytest.mark.parametrize("texts", [[], ["none"], ["none:0"], ["none", "none"]])
def test_none_is_no_fault(texts: list[str]) -> None:
    assert parse_faults(texts, 4) == ()


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["fast:1"], "the kinds are none data forward"),
        (["forward"], "say which rank, as in forward:2"),
        (["forward:"], "say which rank"),
        (["forward:two"], "say which rank"),
        (["forward:-1"], "say which rank"),
        (["forward:4"], "the ranks are 0 to 3"),
        (["none:x"], "say which rank"),
        (["hang:1", "kill:2"], "one of hang and kill"),
    ],
)
def test_what_cannot_be_meant_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_faults(texts, 4)


def test_the_worker_is_told_all() -> None:
    training = Training(steps=9, faults=(Fault("data", 1),), size=0.2, every=3, batchnorm=False)
    assert training.arguments() == (
        ["--steps", "9", "--size", "0.2", "--every", "3", "--fault", "data:1", "--no-batchnorm"]
    )


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the training began")

    monkeypatch.setattr("tracekit.cli.demo.run_training", refuse)


@pytest.mark.usefixtures("no_training")
def test_the_run_goes_where_nothing_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "-o", str(tmp_path)]) == 2
    assert f"{tmp_path}: is not empty" in capsys.readouterr().err
    assert main(["demo", "-o", str(tmp_path / "file")]) == 2
    assert f"{tmp_path / 'file'}: File exists" in capsys.readouterr().err
    assert main(["demo", "-o", str(tmp_path / "two words")]) == 2
    assert "letters, digits" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]

"""``tracekit run``: a script runs as without it, and is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.cli.conftest import Call
from tracekit.cli._run.target import Target, parse
from tracekit.dataset import open_run
from tracekit.errors import InputError, UsageError
from tracekit.journal.reader import find_journals, open_journal

ROOT = Path(__file__).parents[2]

Done = subprocess.CompletedProcess[str]


def python(folder: Path, *arguments: str, **environ: str) -> Done:
    """Run ``python`` with these arguments in a folder; runs lie in its folder ``runs``."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRACEKIT_")}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def traced(folder: Path, *arguments: str, **environ: str) -> Done:
    return python(folder, "-m", "tracekit", "run", *arguments, **environ)


def assert_the_same(folder: Path, *arguments: str, code: int = 0) -> Done:
    """What is printed, what is said, and how it ends, are as without tracekit."""
    expected, found = python(folder, *arguments), traced(folder, *arguments)
    assert found.stdout == expected.stdout
    assert found.stderr == expected.stderr
    assert (found.returncode, expected.returncode) == (code, code)
    return found


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))


def the_run(folder: Path) -> Path:
    (run,) = [path for path in (folder / "runs").iterdir() if not path.name.startswith(".")]
    return run


def end_state(folder: Path) -> dict[str, Any]:
    """How the one rank of a run ended, as a reader of the run sees it."""
    with open_run(the_run(folder)) as run:
        facts = run.table("facts").to_pylist()
    (state,) = [json.loads(fact["value"]) for fact in facts if fact["name"] == "end_state"]
    return dict(state)


# As without tracekit

WHO = """
    import pickle, sys
    class Mine:
        pass
    if __name__ == "__main__":
        print(sys.argv, sys.path, sys.flags)
        print(__name__, __file__, __package__, __doc__, getattr(__spec__, "name", None))
        print(type(__loader__).__name__, __builtins__, sorted(globals()))
        print(type(pickle.loads(pickle.dumps(Mine()))) is Mine)
        print(sys.modules["__main__"].__dict__ is globals(), sys.exc_info(), sys.excepthook)
    """


def test_a_script_finds_its_arguments_its_path_and_itself(tmp_path: Path) -> None:
    write(tmp_path / "jobs" / "who.py", WHO)
    done = assert_the_same(tmp_path, "./jobs/who.py", "-o", "x", "--run", "--help", "-m", "--")
    assert "['./jobs/who.py', '-o', 'x', '--run', '--help', '-m', '--']" in done.stdout
    assert the_run(tmp_path).name.startswith("who-")


def test_a_script_behind_a_link_finds_what_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "jobs" / "who.py", WHO)
    (tmp_path / "link.py").symlink_to("jobs/who.py")
    assert_the_same(tmp_path, "link.py")


def test_a_module_runs_as_python_runs_it(tmp_path: Path) -> None:
    write(tmp_path / "package" / "__init__.py", "")
    write(tmp_path / "package" / "train.py", WHO)
    assert_the_same(tmp_path, "-m", "package.train", "--help")
    assert the_run(tmp_path).name.startswith("train-")


def test_a_package_and_a_folder_run_by_their_main_module(tmp_path: Path) -> None:
    write(tmp_path / "package" / "__main__.py", WHO)
    assert_the_same(tmp_path, "-m", "package", "a")
    assert_the_same(tmp_path, "package", "a")


def test_a_module_that_is_not_there_is_said_by_python(tmp_path: Path) -> None:
    assert_the_same(tmp_path, "-m", "no_such_module", code=1)


def test_the_exit_code_is_the_scripts(tmp_path: Path) -> None:
    write(tmp_path / "exits.py", "import sys; print('on its way'); sys.exit(3)")
    assert_the_same(tmp_path, "exits.py", code=3)
    state = end_state(tmp_path)
    assert (state["state"], state["code"]) == ("exit", 3)


def test_a_text_to_exit_with_is_said(tmp_path: Path) -> None:
    write(tmp_path / "exits.py", "import sys; sys.exit('no data')")
    assert_the_same(tmp_path, "exits.py", code=1)


def test_an_exit_without_ceremony_is_one(tmp_path: Path) -> None:
    write(tmp_path / "exits.py", "import os; os._exit(7)")
    assert_the_same(tmp_path, "exits.py", code=7)


RAISES = """
    import json

    class Late(Exception):
        pass

    def read():
        return json.loads("{")

    def train():
        try:
            read()
        except ValueError as error:
            raise Late("no more data") from error

    train()
    """


def test_a_traceback_has_the_same_text(tmp_path: Path) -> None:
    write(tmp_path / "raises.py", RAISES)
    done = assert_the_same(tmp_path, "raises.py", code=1)
    assert "direct cause" in done.stderr
    assert "tracekit" not in done.stderr
    state = end_state(tmp_path)
    assert (state["state"], state["type"]) == ("exception", "Late")
    assert state["frame"].endswith("raises.py:14 train")


def test_a_traceback_of_a_module_has_the_same_text(tmp_path: Path) -> None:
    write(tmp_path / "package" / "__init__.py", "")
    write(tmp_path / "package" / "raises.py", RAISES)
    assert_the_same(tmp_path, "-m", "package.raises", code=1)


def test_a_script_that_is_no_python_is_shown_as_python_does(tmp_path: Path) -> None:
    write(tmp_path / "wrong.py", "x = 1\nfor y in:\n    pass\n")
    done = assert_the_same(tmp_path, "wrong.py", code=1)
    assert "SyntaxError" in done.stderr


def test_a_hook_of_the_script_sees_the_exception_as_without_us(tmp_path: Path) -> None:
    write(
        tmp_path / "hooked.py",
        """
        import sys, traceback
        def hook(kind, error, found):
            frames = [frame.name for frame in traceback.extract_tb(found)]
            print(kind, error, frames, found is error.__traceback__, sys.excepthook is hook)
        sys.excepthook = hook
        def fails():
            raise RuntimeError("as planned")
        fails()
        """,
    )
    done = assert_the_same(tmp_path, "hooked.py", code=1)
    assert "['<module>', 'fails'] True True" in done.stdout


def test_frames_of_ours_in_the_text_of_an_error_are_taken_out(tmp_path: Path) -> None:
    """As TensorFlow writes them: with a line of code, or with an empty one."""
    ours = ROOT / "tracekit" / "adapters" / "x.py"
    for entry in (
        f'    File "{ours}", line 3, in run\n        result = original(self)\n',
        f'  File "{ours}", line 3, in run\n\n',
    ):
        before = 'in user code:\n\n    File "a.py", line 1, in f  *\n        g()\n'
        after = "    ValueError: no"
        write(tmp_path / "raises.py", f"raise ValueError({before + entry + after!r})")
        done = traced(tmp_path, "raises.py")
        assert done.stderr.endswith(f"ValueError: {before}{after}\n")


def test_an_interrupt_ends_the_process_as_python_ends_it(tmp_path: Path) -> None:
    write(
        tmp_path / "interrupted.py",
        """
        import atexit, os, signal
        atexit.register(print, "at exit", flush=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be inherited as ignored
        os.kill(os.getpid(), signal.SIGINT)
        """,
    )
    done = assert_the_same(tmp_path, "interrupted.py", code=-2)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def test_frames_of_an_import_that_fails_are_the_same(tmp_path: Path) -> None:
    write(tmp_path / "torch" / "__init__.py", "import torch.broken")
    write(tmp_path / "torch" / "broken.py", "raise ValueError('cannot load')")
    write(
        tmp_path / "imports.py",
        """
        try:
            import torch
        except ValueError:
            import torch.broken
        """,
    )
    done = assert_the_same(tmp_path, "imports.py", code=1)
    assert done.stderr.count("ValueError: cannot load") == 2


def test_processes_of_multiprocessing_find_what_the_script_defines(tmp_path: Path) -> None:
    write(
        tmp_path / "pool.py",
        """
        import multiprocessing, sys
        def square(x):
            return x * x, __name__, [m for m in sys.modules if m == "torch"]
        if __name__ == "__main__":
            for start in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(start).Pool(1) as pool:
                    print(start, pool.map(square, range(3)))
        """,
    )
    assert_the_same(tmp_path, "pool.py")
    assert len(list((the_run(tmp_path) / "attempt-000" / "ranks").glob("*[0-9].json"))) == 1


# Recorded

QUIET = """
    import sys
    heavy = ("click", "duckdb", "numpy", "pyarrow", "rich", "torch", "typer")
    assert not [name for name in sys.modules if name.split(".")[0] in heavy]
    """


def test_a_script_without_a_framework_is_a_run_with_its_end(tmp_path: Path) -> None:
    write(tmp_path / "quiet.py", QUIET)
    done = traced(tmp_path, "quiet.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert end_state(tmp_path)["state"] == "clean"


def test_our_options_come_before_the_script(tmp_path: Path) -> None:
    write(tmp_path / "job.py", "import sys; print(sys.argv)")
    done = traced(tmp_path, "-o", "elsewhere", "--run=mine", "job.py", "-o", "there")
    assert done.stdout == "['job.py', '-o', 'there']\n"
    assert (tmp_path / "elsewhere" / "mine" / "run.json").exists()
    assert not (tmp_path / "runs").exists()


def test_the_environment_says_what_the_options_do_not(tmp_path: Path) -> None:
    write(tmp_path / "job.py", "")
    traced(tmp_path, "job.py", TRACEKIT_DIR="there", TRACEKIT_RUN="mine", RANK="1", WORLD_SIZE="2")
    (head,) = find_journals(tmp_path / "there" / "mine" / "attempt-000" / "journal")
    assert open_journal(head).rank == 1


def test_a_script_that_starts_tracekit_itself_joins_the_run(tmp_path: Path) -> None:
    write(
        tmp_path / "job.py",
        """
        import tracekit
        tracekit.start(run="own")
        with tracekit.step(0), tracekit.span("work"):
            pass
        tracekit.stop()
        """,
    )
    assert traced(tmp_path, "--run", "given", "job.py").returncode == 0
    with open_run(tmp_path / "runs" / "given") as run:
        assert "work" in run.table("spans")["name"].to_pylist()


def test_disabled_or_without_a_disk_the_script_runs_all_the_same(tmp_path: Path) -> None:
    write(tmp_path / "job.py", "print('done')")
    done = traced(tmp_path, "job.py", TRACEKIT_DISABLED="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert not (tmp_path / "runs").exists()
    done = traced(tmp_path, "-o", "job.py/runs", "job.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "nothing is recorded" in done.stderr


def test_nothing_but_python_is_needed(tmp_path: Path) -> None:
    write(tmp_path / "job.py", "import sys; sys.exit(5)")
    missing = "import sys; sys.modules['typer'] = sys.modules['numpy'] = None\n"
    code = f"{missing}from tracekit.cli import main; sys.exit(main(['run', 'job.py']))"
    done = python(tmp_path, "-c", code)
    assert (done.returncode, done.stderr) == (5, "")


@pytest.mark.slow
def test_restarts_of_torchrun_are_attempts_of_one_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write(
        tmp_path / "flaky.py",
        """
        import os, sys
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
            sys.exit(3)
        """,
    )
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    launcher += ["--local-addr", "127.0.0.1", "-m", "tracekit", "run", "flaky.py"]
    done = python(tmp_path, *launcher, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    run = the_run(tmp_path)
    assert sorted(path.name for path in run.glob("attempt-*")) == ["attempt-000", "attempt-001"]
    with open_run(run) as opened:
        facts = opened.table("facts").to_pylist()
    ends = {
        (fact["attempt"], fact["rank"]): json.loads(fact["value"])
        for fact in facts
        if fact["name"] == "end_state"
    }
    assert {key: end["state"] for key, end in ends.items() if key != (0, 0)} == {
        (0, 1): "exit",
        (1, 0): "clean",
        (1, 1): "clean",
    }
    assert ends[0, 1]["code"] == 3


def test_ranks_that_a_script_starts_by_calling_itself_are_one_run(tmp_path: Path) -> None:
    write(
        tmp_path / "again.py",
        """
        import os, subprocess, sys
        print(sys.argv, sys.path[:1], os.environ.get("LOCAL_RANK"), flush=True)
        me = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
        if "LOCAL_RANK" not in os.environ:
            subprocess.check_call([sys.executable, "-c", "import sys; print(sys.argv)"])
            env = {**os.environ, "RANK": "1", "LOCAL_RANK": "1"}
            sys.exit(subprocess.call(me, env=env))
        sys.exit(4)
        """,
    )
    job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}
    expected = python(tmp_path, "again.py", "--lr", "1", **job)
    found = traced(tmp_path, "again.py", "--lr", "1", **job)
    assert (found.stdout, found.stderr) == (expected.stdout, expected.stderr)
    assert (found.returncode, expected.returncode) == (4, 4)
    with open_run(the_run(tmp_path)) as run:
        assert run.ranks == (0, 1)


# What belongs to whom


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["s.py"], Target(script="s.py")),
        (["s.py", "--dir", "x"], Target(script="s.py", arguments=("--dir", "x"))),
        (["--dir", "d", "s.py", "-m"], Target("s.py", arguments=("-m",), directory="d")),
        (["-od", "--", "s.py"], Target(script="s.py", directory="d")),
        (["--run", "r", "-m", "a.b", "-o"], Target(None, "a.b", ("-o",), label="r")),
        (["-ma.b", "--help"], Target(module="a.b", arguments=("--help",))),
        (["s.py", "--", "-x"], Target(script="s.py", arguments=("--", "-x"))),
    ],
)
def test_options_end_with_the_script(
    words: list[str], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s.py", "")
    assert parse(words) == target


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "say which script"),
        (["-o"], "-o needs a value"),
        (["--loud", "s.py"], "there is no option --loud"),
        (["-"], "stdin"),
        (["gone.py"], "gone.py: No such file or directory"),
        (["."], "without __main__.py"),
    ],
)
def test_wrong_usage_is_said_before_anything_runs(
    words: list[str], reason: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, InputError), match=reason):
        parse(words)
    refused = call("run", *words)
    assert (refused.code, refused.out) == (2, "")
    assert reason in refused.line
    assert list(tmp_path.iterdir()) == []


def test_help_is_ours_before_the_script_only(call: Call) -> None:
    assert "--run LABEL" in call("run", "--help").out
    assert "--run LABEL" in call("run", "-o", "x", "--help").out

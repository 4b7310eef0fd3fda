"""Scripts that know nothing of tracekit, in real processes under real launchers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from tracekit.dataset import open_run

ROOT = Path(__file__).parents[3]
TUTORIAL = Path(__file__).with_name("tutorial.py")
HERE = ("gc", "step")


def launch(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRACEKIT_")}
    environment |= {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, **environ},
        capture_output=True,
        text=True,
        timeout=280,
    )


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    launcher += ["--local-addr", "127.0.0.1"]
    return launch(folder, *launcher, *arguments)


def the_run(folder: Path) -> Path:
    (run,) = [path for path in (folder / "runs").iterdir() if not path.name.startswith(".")]
    return run


def spans_of(folder: Path) -> list[dict[str, Any]]:
    with open_run(the_run(folder)) as run:
        return list(run.table("spans").to_pylist())


def counted(spans: list[dict[str, Any]], rank: int) -> Counter[str]:
    mine = [span for span in spans if span["rank"] == rank and span["kind"] not in HERE]
    return Counter(f"{span['kind']} {span['name']}" for span in mine)


@pytest.mark.slow
def test_the_tutorial_under_torchrun_is_traced_unchanged_and_trains_the_same(
    tmp_path: Path,
) -> None:
    """Two epochs of four batches; loader workers are forked; rank 0 saves twice."""
    arguments = ["2", "1", "--workers", "1", "--method", "fork", "--snapshot"]
    plain = torchrun(tmp_path, str(TUTORIAL), *arguments, "plain.pt")
    assert plain.returncode == 0, plain.stderr
    done = torchrun(tmp_path, "-m", "tracekit", "run", str(TUTORIAL), *arguments, "traced.pt")
    assert done.returncode == 0, done.stderr
    # By character: two ranks share the pipe, and one may write between a line of another and its
    # end.
    assert sorted(done.stdout.replace("traced.pt", "plain.pt")) == sorted(plain.stdout)
    expected = torch.load(tmp_path / "plain.pt", weights_only=True)["MODEL_STATE"]
    found = torch.load(tmp_path / "traced.pt", weights_only=True)["MODEL_STATE"]
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)

    spans = spans_of(tmp_path)
    for rank in (0, 1):
        of_rank = counted(spans, rank)
        assert of_rank.pop("data data_wait") >= 2 * 6  # the tutorial peeks at a batch, too
        assert of_rank.pop("eval data_wait") == 2 * 4
        assert of_rank.pop("checkpoint torch.save", 0) == (2 if rank == 0 else 0)
        assert of_rank == {
            "forward forward": 8,
            "comm broadcast": 8,
            "backward backward": 8,
            "comm all_reduce": 8,
            "optimizer optimizer_step": 8,
        }
    steps = sorted((s["rank"], s["step"]) for s in spans if s["name"] == "all_reduce")
    assert steps == [(rank, step) for rank in (0, 1) for step in range(8)]
    assert len(list((the_run(tmp_path) / "attempt-000" / "ranks").glob("*[0-9].json"))) == 2


@pytest.mark.slow
def test_an_error_in_the_forward_shows_no_frame_of_ours(tmp_path: Path) -> None:
    """One rank without a launcher; its loader's workers are spawned."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    alone["MASTER_PORT"] = str(store.port)
    del store
    command = [str(TUTORIAL), "1", "1", "--workers", "1", "--method", "spawn", "--fail"]
    plain = launch(tmp_path, *command, **alone)
    done = launch(tmp_path, "-m", "tracekit", "run", *command, **alone)
    assert (plain.returncode, done.returncode) == (1, 1)
    assert "mat1 and mat2" in done.stderr
    assert traceback_in(done.stderr) == traceback_in(plain.stderr)
    assert counted(spans_of(tmp_path), 0)["forward forward"] == 9
    assert len(list((the_run(tmp_path) / "attempt-000" / "ranks").glob("*[0-9].json"))) == 1


def traceback_in(text: str) -> str:
    """The exception as PyTorch's own hook shows it; not the warnings of gloo with their times."""
    lines = [line for line in text.splitlines() if line.startswith("[rank0]:")]
    assert "Traceback" in lines[0]
    return "\n".join(lines)


@pytest.mark.slow
def test_the_tutorial_explains_itself(tmp_path: Path) -> None:
    done = launch(tmp_path, "-m", "tracekit", "run", str(TUTORIAL), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: tutorial.py")


SPAWNS = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def main(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(main, args=(sys.argv[1],), nprocs=2, start_method=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_ranks_that_the_script_starts_itself_are_one_run(tmp_path: Path, start: str) -> None:
    (tmp_path / "spawns.py").write_text(SPAWNS)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
    port = str(store.port)
    del store
    done = launch(tmp_path, "-m", "tracekit", "run", "spawns.py", port, start)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with open_run(the_run(tmp_path)) as run:
        assert run.ranks == (0, 1)
        spans = run.table("spans").to_pylist()
        ends = [f for f in run.table("facts").to_pylist() if f["name"] == "end_state"]
    found = sorted((s["rank"], s["step"]) for s in spans if s["name"] == "all_reduce")
    assert found == [(rank, step) for rank in (0, 1) for step in range(3)]
    assert all('"clean"' in end["value"] for end in ends), ends

"""The innermost frame of the user's code, whatever surrounds it."""

from __future__ import annotations

import pytest

from tracekit.analysis.post_mortem.stacks import differ, is_users, user_frame


@pytest.mark.parametrize(
    "frame",
    [
        "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1 forward",
        "/usr/lib/python3.11/threading.py:324 wait",
        "/usr/lib/python3/dist-packages/numpy/core.py:3 dot",
        "/src/tracekit/adapters/torch/_loop.py:88 run",
        "/src/adapters/torch/_loop.py:88 run",
        "<frozen runpy>:198 _run_module_as_main",
        "/src/pytorch/torch/autograd/graph.py:5 backward",
    ],
)
def test_frames_of_libraries_are_not_the_user_s(frame: str) -> None:
    assert not is_users(frame)


@pytest.mark.parametrize(
    "frame",
    [
        "/home/me/project/train.py:42 main",
        "/home/me/tracekit/train.py:42 main",
        "/src/tracekit/cli/_demo/worker.py:87 wait_for_nothing",
        "train.py:1 <module>",
    ],
)
def test_frames_of_the_job_are(frame: str) -> None:
    assert is_users(frame)


def test_the_main_thread_counts_first() -> None:
    stack = {
        "threads": [
            {"name": "pin_memory", "current": False, "frames": ["/job/loader.py:3 pin"]},
            {
                "name": "MainThread",
                "current": True,
                "frames": ["/x/site-packages/torch/a.py:1 f", "/job/train.py:9 main"],
            },
        ]
    }
    assert user_frame(stack) == "/job/train.py:9 main"


def test_two_looks_tell_whether_a_rank_moves() -> None:
    one = {"threads": [{"name": "MainThread", "frames": ["a.py:1 f"]}]}
    other = {"threads": [{"name": "MainThread", "frames": ["a.py:2 f"]}]}
    assert differ([one]) is None
    assert differ([one, one]) is False
    assert differ([one, other]) is True
    assert differ([{"threads": []}, one]) is None

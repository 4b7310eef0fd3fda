"""What the tests of the TensorFlow adapter share; without TensorFlow none of them is collected."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.adapters.torch.tape import Tape, recording
from tracekit.adapters._patch import patched

collect_ignore_glob = [] if find_spec("tensorflow") and find_spec("tf_keras") else ["test_*.py"]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """TensorFlow and Keras warn of themselves."""
    for item in items:
        if "adapters/tensorflow" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture
def tape() -> Iterator[Tape]:
    """What is recorded in the test; nothing of ours may fail in it or stay patched after it."""
    from tracekit.adapters.tensorflow._guard import failures

    failures.clear()
    with recording() as tape:
        yield tape
    gc.collect()
    assert failures == {}
    assert patched() == []

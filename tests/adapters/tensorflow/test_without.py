"""Where TensorFlow is not installed, what was asked for says what to type."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "call", ["TracekitCallback()", "trace_strategy(None)", "trace_dataset(None)"]
)
def test_the_extra_is_named(call: str) -> None:
    """Without its site-packages an interpreter has nothing but what is here."""
    code = f"""
import sys
sys.path.append({str(ROOT)!r})
from tracekit.adapters.tensorflow import TracekitCallback, trace_dataset, trace_strategy
{call}
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "tracekit.errors.MissingDependency: tensorflow is not installed:"
        " pip install 'tracekit-blackbox[tensorflow]'"
        " (from a checkout: pip install '.[tensorflow]')"
    )

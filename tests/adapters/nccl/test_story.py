"""The story of a slow link among many ranks, from the logs alone, then with the measurement."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tests.adapters.nccl.logs import ranks, write
from tests.adapters.nccl.test_nccl_tests import pair
from tests.cli.conftest import Call

SLOW = 137


def test_one_slow_link_among_512_ranks_is_named_and_then_confirmed(
    tmp_path: Path, call: Call
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    job = ranks(512, 8)
    for rank in job:
        speeds = [100 if rank.rank == SLOW and card == 1 else 200_000 for card in range(2)]
        rank.begin("2.27.3").cards(*speeds).connect(channels=1).done().calls(3)
    write(logs, job)
    shown = json.loads(call("analyze", logs, "--format", "json").out)
    first = shown["findings"][0]
    assert (first["id"], first["ranks"], first["severity"]) == ("comm.slow_nic", [SLOW], "critical")
    assert "mlx5_1 on node17 (rank 137) came up at 100 Mb/s" in first["title"]
    assert "200 Gb/s" in first["title"]
    assert any("pairwise" in advice and "node17" in advice for advice in first["advice"])
    assert first["evidence"]["lines"][0].startswith(f"{logs}/node17.4001.log:")

    hosts = ["node3", "node17", "node18", "node40"]
    measured = "".join(
        pair(one, two, 0.01 if "node17" in (one, two) else 24.1)
        for one, two in itertools.combinations(hosts, 2)
    )
    (logs / "pairs.txt").write_text(measured)
    shown = json.loads(call("analyze", logs, "--format", "json").out)
    found = {finding["id"]: finding for finding in shown["findings"]}
    assert found["comm.slow_nic"]["ranks"] == [SLOW]
    assert found["comm.bandwidth"]["evidence"]["hosts"] == ["node17"]
    assert found["comm.bandwidth"]["certainty"] == "likely"

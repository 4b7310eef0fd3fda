"""A job that trains on as many ranks as it has threads, and counts what it does on the network."""

from __future__ import annotations

import json
import sys
import time

import tracekit

calls: list[str] = []
sys.addaudithook(lambda name, _: calls.append(name) if name.startswith("socket.") else None)


def main() -> None:
    folder, steps, pause, ranks = (
        sys.argv[1],
        int(sys.argv[2]),
        float(sys.argv[3]),
        int(sys.argv[4]),
    )
    tracekit.start(run="live", dir=folder, rank=0, world_size=ranks)
    with tracekit.span("before", kind="init"):
        pass
    calls.clear()  # the host's name was asked for
    for number in range(steps):
        for rank in range(ranks):
            with tracekit.as_rank(rank), tracekit.step(number):
                with tracekit.span("forward", kind="forward"):
                    pass
                if number == steps - 2 and rank == 0:
                    with tracekit.span("torch.save", kind="checkpoint"):
                        pass
                tracekit.event("loss", value=1.0)
        time.sleep(pause)
    tracekit.stop()
    json.dump({"network": calls}, sys.stdout)


if __name__ == "__main__":
    main()

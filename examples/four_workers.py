"""Four workers share each round's work equally, and one of them is four times slower.

Needs nothing but tracekit and the standard library: python examples/four_workers.py
"""

from __future__ import annotations

import threading
import time

import tracekit

SECONDS = [0.4, 0.4, 0.4, 1.6]
ROUNDS = 4

together = threading.Barrier(len(SECONDS))
took: dict[int, list[float]] = {rank: [] for rank in range(len(SECONDS))}


def worker(rank: int) -> None:
    with tracekit.as_rank(rank):
        for number in range(ROUNDS):
            with tracekit.step(number):
                begin = time.perf_counter()
                with tracekit.span("work", kind="forward"):
                    time.sleep(SECONDS[rank])
                took[rank].append(time.perf_counter() - begin)
                with tracekit.span("wait for the others", kind="comm"):
                    together.wait()


def main() -> None:
    session = tracekit.start(run="four-workers", rank=0, world_size=len(SECONDS))
    threads = [threading.Thread(target=worker, args=(rank,)) for rank in took]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracekit.stop()

    for slow in tracekit.find_stragglers(took):
        print(
            f"rank {slow.rank} makes the others wait {slow.imposed_wait:.1f} s a round,"
            f" {100 * slow.share:.0f} % of it (by the {' and the '.join(slow.rules)} rule)"
        )
    if session is not None:
        print(f"recorded in {session.run_dir}")


if __name__ == "__main__":
    main()

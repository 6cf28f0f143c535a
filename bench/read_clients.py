"""The processes that read, and how much they can do by themselves."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Self

from bench.key_reads import Asked, Reads, Target, read, trivial_server

_ASKED = Asked(keys=1000, from_ms=0, to_ms=1, seed=1)
_WARM_UP_S = 0.5


class Clients:
    """Processes that share some connections. A context manager, which starts and ends them."""

    def __init__(self, processes: int, connections: int) -> None:
        self._connections = connections
        spawn = multiprocessing.get_context("spawn")
        # A pool of several would start its processes one after another, when they are needed.
        self._pools = [ProcessPoolExecutor(1, spawn) for _ in range(processes)]

    def __enter__(self) -> Self:
        # A read of nothing, so that each process has loaded what it needs before anything is measured.
        for started in [pool.submit(read, [], _ASKED, 0.0, 0.0) for pool in self._pools]:
            started.result()
        return self

    def __exit__(self, *error: object) -> None:
        for pool in self._pools:
            pool.shutdown()

    def start(self, targets: Sequence[Target], asked: Asked, since_s: float, until_s: float) -> list[Future[Reads]]:
        """Read as `key_reads.read` does, with the connections spread over the targets."""
        numbered = [(number, targets[number % len(targets)]) for number in range(self._connections)]
        return [
            pool.submit(read, numbered[place :: len(self._pools)], asked, since_s, until_s)
            for place, pool in enumerate(self._pools)
        ]


@dataclass(frozen=True)
class Ceiling:
    """The reads per second of clients whose server always gives the same answer, and their CPU time per read in µs."""

    reads_per_s: float
    client_us: float


def ceiling(clients: Clients, seconds: float) -> Ceiling:
    """Measure what the clients can do on this machine, beside a server that does almost nothing. Blocks."""
    with trivial_server() as target:
        since_s = time.monotonic() + _WARM_UP_S
        started = clients.start([target], _ASKED, since_s, since_s + seconds)
        reads = [each.result() for each in started]
    count = sum(len(each.latencies_ms) for each in reads)
    return Ceiling(count / seconds, 1e6 * sum(each.cpu_s for each in reads) / max(1, count))

"""One run of the reads: the stream of one side without reads and with them, and the comparison of answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.answers import faults, known_counts
from bench.case import WINDOW_MS, Case
from bench.errors import BenchFailed
from bench.events import base_ms
from bench.feed import Feed
from bench.key_reads import Asked, Reads, Target, ask, owned
from bench.load import produce
from bench.outputs import verify
from bench.programs import COUNTING
from bench.rates import Sample, rate_between_commits
from bench.read_clients import Clients
from bench.read_sides import ReadSide, instance_log
from bench.sides import Started, all_running
from bench.watch import SAMPLE_EVERY_S, CommittedOffsets
from tidemark.processes import wait_until

_LONGEST_S = 3_600
_READY_S = 300.0
_REST_S = 120.0
_CHECKED = 300


@dataclass(frozen=True)
class Load:
    """The load of a run: `history` windows are processed before it, and then `rate` events per second arrive.

    Each part of a run, with and without reads, lasts for `seconds` after `warm_up_s`.
    """

    keys: int = 50_000
    rate: int = 10_000
    history: int = 3
    seconds: float = 20.0
    warm_up_s: float = 10.0
    seed: int = 1
    commit_interval_ms: int = 1_000

    @property
    def case(self) -> Case:
        """The events: event time is as fast as the clock, so every key has an event per `interval_ms`."""
        return Case(
            name="reads",
            about=f"windowed count, {self.keys:,} keys, {self.rate:,} events/s, commit per {self.commit_interval_ms} ms",
            keys=self.keys,
            interval_ms=max(1, 1000 * self.keys // self.rate),
            events=_LONGEST_S * self.rate,
            commit_interval_ms=self.commit_interval_ms,
            max_batch_records=1_000_000,
            program=COUNTING,
        )

    @property
    def history_events(self) -> int:
        """The events of the windows that are processed before."""
        return self.history * (WINDOW_MS * self.keys // self.case.interval_ms)


@dataclass(frozen=True)
class Measured:
    """The measurements of one run. Latencies are in milliseconds, rates of the stream in events per second.

    `client_us` is the CPU time of the client per read. `wrong` says what was wrong in `checked` answers.
    """

    side: str
    instances: int
    alternation: int
    reads_per_s: float
    p50: float
    p99: float
    stream_alone: float
    stream_with_reads: float
    client_us: float
    checked: int
    wrong: list[str]

    @property
    def stream_kept(self) -> float:
        """The share of its rate that the stream has kept during the reads."""
        return self.stream_with_reads / self.stream_alone


class Run:
    """One run of one side, on a broker of its own."""

    def __init__(
        self, side: ReadSide, instances: int, load: Load, clients: Clients, bootstrap: str, folder: Path
    ) -> None:
        self.side, self.instances, self.load, self.clients = side, instances, load, clients
        self.bootstrap, self.folder = bootstrap, folder
        self.start_ms = base_ms(int(time.time() * 1000), load.case)
        self.asked = Asked(load.keys, self.start_ms, self.start_ms + load.case.span_ms, load.seed)
        self._started: list[Started] = []

    def measure(self, alternation: int) -> Measured:
        """Start the side, and measure it. Blocks. Raises `BenchFailed`."""
        load, case = self.load, self.load.case
        with ExitStack() as opened:
            group = self.side.side.group(case)
            offsets = opened.enter_context(closing(CommittedOffsets(self.bootstrap, group, case.program.sources)))
            numbers = range(self.instances)
            commands = [self.side.side.command(case, self.bootstrap, self.folder, number) for number in numbers]
            logs = [instance_log(self.folder, number) for number in numbers]
            self._started = opened.enter_context(all_running(commands, logs))
            # Tasks move to the instances that start last: while they have no state, and nothing is measured.
            targets: list[Target] = []

            def are_ready() -> bool:
                targets[:] = self.side.targets(self.folder)
                return bool(targets)

            self._await(are_ready, _READY_S, "not all instances hold tasks")
            produce(self.bootstrap, case.sized(load.history_events), self.start_ms)
            self._await(lambda: offsets.total() >= load.history_events, _READY_S, "the history is not committed")
            feed = opened.enter_context(Feed(self.bootstrap, case, self.start_ms, load.rate, load.history_events))
            self._sample(offsets, feed, time.monotonic() + load.warm_up_s)
            alone = self._rate(offsets, feed, time.monotonic() + load.seconds)
            since_s = time.monotonic() + load.warm_up_s
            until_s = since_s + load.seconds
            started = self.clients.start(targets, self.asked, since_s, until_s)
            self._sample(offsets, feed, since_s, started)
            with_reads = self._rate(offsets, feed, until_s, started)
            reads = [each.result() for each in started]
            sent = feed.sent
            events = feed.stop()
            self._await(lambda: offsets.total() >= events, _REST_S, "not all events are committed")
            checked, wrong = self._check(targets, reads, sent, events)
        found = np.concatenate([each.latencies_ms for each in reads])
        if not len(found):
            raise BenchFailed(f"{self._where} answered no read")
        p50, p99 = (float(each) for each in np.percentile(found, [50, 99]))
        return Measured(
            self.side.side.name, self.instances, alternation, len(found) / load.seconds, p50, p99, alone, with_reads,
            1e6 * sum(each.cpu_s for each in reads) / len(found), checked, wrong,
        )  # fmt: skip

    def _check(self, targets: list[Target], reads: list[Reads], sent: int, events: int) -> tuple[int, list[str]]:
        """Return the number of answers that were compared with known counts, and what is wrong in them."""
        case, windows = self.load.case, self.load.case.sized(events).windows
        before = known_counts(case, self.load.history_events, windows)
        during = [answer for each in reads for answer in each.answers]
        wrong = faults(during, before, known_counts(case, sent, windows), self.start_ms)
        after = known_counts(case, events, windows)
        keys = np.random.default_rng(self.load.seed).integers(0, self.load.keys, _CHECKED)
        left: list[str] = []

        def all_right() -> bool:
            nonlocal left
            left = [
                fault
                for target in targets
                for fault in faults(ask(target, self.asked, owned(target, keys).tolist()), after, after, self.start_ms)
            ]
            return not left

        # A store is written after the commit in Kafka that the offsets show.
        wait_until(all_right, _REST_S, 0.5)
        verdict = verify(self.bootstrap, case.sized(events), self.start_ms, case.program.sink)
        if not verdict.right:
            left.append(
                f"the output has {verdict.missing} missing, {verdict.wrong} wrong, {verdict.unexpected} unexpected counts"
            )
        return len(during) + sum(len(owned(target, keys)) for target in targets), wrong + left

    def _rate(
        self, offsets: CommittedOffsets, feed: Feed, until_s: float, clients: Sequence[Future[Reads]] = ()
    ) -> float:
        rate = rate_between_commits(self._sample(offsets, feed, until_s, clients))
        if rate is None:
            raise BenchFailed(f"{self._where} committed less than twice in {self.load.seconds:.0f} s")
        return rate

    def _sample(
        self, offsets: CommittedOffsets, feed: Feed, until_s: float, clients: Sequence[Future[Reads]] = ()
    ) -> list[Sample]:
        """Take samples of the committed offsets until then. Raises the error of a client, of the feed or of the side."""
        samples: list[Sample] = []
        tick = threading.Event()
        while (now := time.monotonic()) < until_s:
            samples.append(Sample(now, offsets.total()))
            self._require_running()
            feed.require_running()
            for client in clients:
                if client.done():
                    client.result()
            tick.wait(min(SAMPLE_EVERY_S, max(0.0, until_s - time.monotonic())))
        return samples

    def _await(self, condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        def has_ended() -> bool:
            self._require_running()
            return condition()

        if not wait_until(has_ended, timeout_s, SAMPLE_EVERY_S):
            raise BenchFailed(f"{self._where}: {otherwise} after {timeout_s:.0f} s")

    def _require_running(self) -> None:
        for number, started in enumerate(self._started):
            if started.process.poll() is not None:
                raise BenchFailed(f"instance {number} of {self._where} ended with {started.process.returncode}")

    @property
    def _where(self) -> str:
        return f"{self.side.side.name} (logs in {self.folder})"

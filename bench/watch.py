"""Watches a running side from outside: the committed offsets of its group, and the resources of its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from threading import Event

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.case import PARTITIONS, QUIET
from bench.errors import BenchFailed
from bench.rates import Sample
from bench.sides import Started

SAMPLE_EVERY_S = 0.2
_SAMPLES_PER_USAGE = 5
_STALLED_S = 180.0
_TIMEOUT_S = 10.0


@dataclass
class Usage:
    """The peak resident bytes and the CPU seconds of processes and their children."""

    peak_rss_bytes: int = 0
    cpu_seconds: float = 0.0

    def take(self, pids: Collection[int]) -> None:
        """Measure now. If one of the processes has ended, the values stay as they are."""
        try:
            roots = [psutil.Process(pid) for pid in pids]
            processes = [process for root in roots for process in (root, *root.children(recursive=True))]
            rss = sum(process.memory_info().rss for process in processes)
            cpu = sum(times.user + times.system for times in (process.cpu_times() for process in processes))
        except psutil.NoSuchProcess:
            return
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
        self.cpu_seconds = max(self.cpu_seconds, cpu)


@dataclass
class Run:
    """The observations of one side from the start of its process to the commit of the last event."""

    samples: list[Sample] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


class CommittedOffsets:
    """Reads the source offsets that a group has committed, without joining it.

    It uses a consumer, because the admin client of librdkafka 2.16 crashes if the group's coordinator is not ready
    (https://github.com/confluentinc/confluent-kafka-javascript/issues/374). The consumer is read_uncommitted, because
    otherwise it would wait for open transactions; offsets that a transaction has not committed yet are not visible in either
    mode.
    """

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], partitions: int = PARTITIONS) -> None:
        config = {
            "bootstrap.servers": bootstrap,
            **QUIET,
            "group.id": group,
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer(config)
        self._partitions = [TopicPartition(topic, partition) for topic in topics for partition in range(partitions)]

    def total(self) -> int:
        """Return the sum over the partitions, or 0 while the group or its coordinator does not exist yet."""
        try:
            committed = self._consumer.committed(self._partitions, timeout=_TIMEOUT_S)
        except KafkaException:
            return 0
        return sum(max(0, partition.offset) for partition in committed)

    def close(self) -> None:
        """Close the connection. This does not change the group."""
        self._consumer.close()


def watch(
    started: Sequence[Started],
    offsets: CommittedOffsets,
    events: int,
    progress: Callable[[int], None],
) -> Run:
    """Take samples until the processes `started` have committed all `events`. Times count from the start of the first one.

    Blocks. Raises `BenchFailed` if a process ends before that, or nothing is committed for three minutes.
    """
    run = Run()
    tick = Event()
    processes = [each.process for each in started]
    began_s = moved_at = started[0].started
    while True:
        sample = Sample(time.monotonic() - began_s, offsets.total())
        before = run.samples[-1].committed if run.samples else 0
        if sample.committed > before:
            moved_at = time.monotonic()
            progress(sample.committed)
        if sample.committed >= before:
            run.samples.append(sample)
        if len(run.samples) % _SAMPLES_PER_USAGE == 0 or sample.committed >= events:
            run.usage.take([process.pid for process in processes])
        if sample.committed >= events:
            return run
        for process in processes:
            if process.poll() is not None:
                raise BenchFailed(f"ended with code {process.returncode} after {sample.committed} of {events} events")
        if time.monotonic() - moved_at > _STALLED_S:
            raise BenchFailed(f"committed nothing for {_STALLED_S:.0f} s, at {sample.committed} of {events} events")
        tick.wait(max(0.0, SAMPLE_EVERY_S - (time.monotonic() - began_s - sample.seconds)))

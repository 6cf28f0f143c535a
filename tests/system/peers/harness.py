"""One side of one case, from empty topics to its reduced output."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.sides import Started, running
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.truth.topics import Place, committed_offsets, end_offsets
from tests.system.peers.cases import PARTITIONS, Case
from tests.system.peers.inputs import Size, Stage, stages
from tests.system.peers.model import Reduced
from tests.system.peers.outputs import read_reduced
from tests.system.peers.sides import JavaSide, Side, TidemarkSide

from tidemark.names import repartition_topic
from tidemark.processes import wait_until
from tidemark.settings import Settings

STALLED_S = 180.0
_SETTLED_S = 2.0
_TIMEOUT_S = 30.0


class SideFailed(Exception):
    """A side ended by itself, or committed nothing more; the message has the end of its log."""


@dataclass(frozen=True)
class Ran:
    """What one side wrote."""

    reduced: Reduced
    outputs: int
    seconds: float


def run_java(case: Case, bootstrap: str, folder: Path, size: Size, settings: Settings) -> Ran:
    """Run Kafka Streams on a case; blocks, raises as `run_side` does."""
    return run_side(JavaSide(settings), case, stages(case, size), bootstrap, folder)


def run_tidemark(case: Case, bootstrap: str, folder: Path, size: Size, settings: Settings) -> Ran:
    """Run a Tidemark instance on a case; blocks, raises as `run_side` does."""
    return run_side(TidemarkSide(settings, size.reach), case, stages(case, size), bootstrap, folder)


def run_side(side: Side, case: Case, made: list[Stage], bootstrap: str, folder: Path) -> Ran:
    """Produce stage by stage, each when the one before is committed; stop the side and read its output.

    `folder` takes state and log and must not exist. Blocks; raises `SideFailed`.
    """
    folder.mkdir(parents=True)
    began = time.monotonic()
    topics = [*map(case.input, case.roles), case.output, *map(case.topic, case.extra_outputs)]
    _create_topics(bootstrap, [side.prefix + topic for topic in topics])
    _produce(bootstrap, side, case, made[0])
    command = side.command(case, bootstrap, folder)
    log = folder / "side.log"
    with _explained(log), running(command, log) as started:
        for number, stage in enumerate(made):
            if number:
                _produce(bootstrap, side, case, stage)
            _wait_committed(side, case, bootstrap, started)
        _wait_settled(bootstrap, side.prefix + case.output, started)
    reduced, outputs = read_reduced(bootstrap, case, side.prefix + case.output)
    return Ran(reduced, outputs, time.monotonic() - began)


def _create_topics(bootstrap: str, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        created.result(_TIMEOUT_S)


def _produce(bootstrap: str, side: Side, case: Case, stage: Stage) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 3})
    failed: list[str] = []
    for role, records in stage.items():
        topic = side.prefix + case.input(role)
        for record in records:
            while len(producer) > 50_000:
                producer.poll(0.05)
            producer.produce(
                topic,
                record.value,
                record.key.encode(),
                record.partition,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
                timestamp=record.ts_ms,
            )
    if producer.flush(_TIMEOUT_S) or failed:
        raise SideFailed(f"the broker did not take all input: {failed[:1]}")


def _wait_committed(side: Side, case: Case, bootstrap: str, started: Started) -> None:
    """Until the group has committed the ends of its inputs, and then of its repartition topics."""
    _wait_ends(side, case, bootstrap, started, [side.prefix + case.input(role) for role in case.roles], 0)
    if case.rekeyed:
        topics = [repartition_topic(side.group(case), name) for name in case.rekeyed]
        # These end with a transaction's marker, which nobody has to commit.
        _wait_ends(side, case, bootstrap, started, topics, 1)


def _wait_ends(
    side: Side, case: Case, bootstrap: str, started: Started, topics: Iterable[str], uncommitted_offsets: int
) -> None:
    places: list[Place] = [(topic, p) for topic in topics for p in range(PARTITIONS)]
    ends = {place: end for place, end in end_offsets(bootstrap, places, "read_uncommitted").items() if end}
    last, moved_at = -1, time.monotonic()

    def is_done() -> bool:
        nonlocal last, moved_at
        _require_alive(started)
        committed = committed_offsets(bootstrap, side.group(case), ends, _TIMEOUT_S)
        total = sum(max(0, offset) for offset in committed.values())
        if total != last:
            last, moved_at = total, time.monotonic()
        if time.monotonic() - moved_at > STALLED_S:
            raise SideFailed(f"nothing more was committed for {STALLED_S:.0f} s, at {total} of {sum(ends.values())}")
        return all(committed[place] >= end - uncommitted_offsets for place, end in ends.items())

    if not wait_until(is_done, 10 * STALLED_S, every_s=0.2):
        raise SideFailed(f"not done after {10 * STALLED_S:.0f} s")


def _wait_settled(bootstrap: str, topic: str, started: Started) -> None:
    """Until nothing more is written for a while: what is due at the last commit may come with the next one."""
    places: list[Place] = [(topic, partition) for partition in range(PARTITIONS)]
    seen: dict[Place, int] = {}
    since = time.monotonic()

    def is_quiet() -> bool:
        nonlocal seen, since
        _require_alive(started)
        now = end_offsets(bootstrap, places, "read_uncommitted")
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= _SETTLED_S

    if not wait_until(is_quiet, STALLED_S, every_s=0.2):
        raise SideFailed(f"{topic} still grows after {STALLED_S:.0f} s")


def _require_alive(started: Started) -> None:
    code = started.process.poll()
    if code is not None:
        raise SideFailed(f"ended with code {code}")


@contextmanager
def _explained(log: Path) -> Iterator[None]:
    try:
        yield
    except SideFailed as error:
        last = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
        raise SideFailed("\n".join([str(error), *last])) from error

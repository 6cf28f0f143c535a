"""A `CountingApp` that runs in the background with input arriving, and strangers who write to its changelog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer
from tests.support.counting import NO_PROBE, CountingApp, in_thread
from tests.support.standby import count

from tidemark.clock import wall_clock_ms
from tidemark.instance.assembly import make_instance
from tidemark.names import changelog_topic
from tidemark.operations.context import OperationContext
from tidemark.processes import wait_until
from tidemark.supervision.state import InstanceState

_EVERY_S = 0.05
BUSY_KEYS = 10


@contextmanager
def running(app: CountingApp, fed: threading.Event | None = None) -> Iterator[None]:
    """One instance, and a few records of the first keys again and again while `fed` is set; default: always."""
    stop, idle = threading.Event(), threading.Event()
    instance = make_instance(app.plan, app.settings, 0, "counting", NO_PROBE)
    source = app.source(app.settings.bootstrap_servers, f"{app.name}-in", idle)

    def feed() -> None:
        while not stop.wait(_EVERY_S):
            if fed is None or fed.is_set():
                app.feed(2 * BUSY_KEYS, keys=BUSY_KEYS)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        with in_thread(instance, source) as failures:
            context = context_of(app)

            # Also of one that committed before: what happens next is to happen to a running application, not to its start.
            def is_running() -> bool:
                return instance.states.state is InstanceState.RUNNING and all(
                    f.record for f in context.evidence.facts().values()
                )

            assert wait_until(lambda: bool(failures) or is_running(), 180)
            assert failures == []
            yield
    finally:
        stop.set()
        feeding.join(60)
    assert failures == []


def context_of(app: CountingApp) -> OperationContext:
    return OperationContext.of(app.plan, app.settings, [], wall_clock_ms)


def batches(app: CountingApp) -> list[int]:
    """The last committed batch of each task."""
    return [found.record.batch for found in context_of(app).evidence.facts().values() if found.record is not None]


def tamper(app: CountingApp, written: dict[str, int | None], commits: Callable[[], list[int]]) -> None:
    """Write records of a foreign producer to the changelog; return when the application has committed after them."""
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers, "partitioner": "murmur2_random"})
    for key, value in written.items():
        producer.produce(changelog_topic(app.name, "n"), None if value is None else count(value), key.encode())
    assert producer.flush(60) == 0
    before = commits()
    # The batch that was at work may have asked for the changelog's end before.
    assert wait_until(lambda: all(now >= then + 2 for now, then in zip(commits(), before, strict=True)), 120)

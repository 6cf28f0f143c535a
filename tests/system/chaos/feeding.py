"""The input of the chaos tests: many records of one kind and some of others, at rates that faults can change."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException, Producer
from tests.system.chaos.processor import REFUSED

from tidemark.processes import wait_until

PARTITIONS = 2
KEYS, IDS = 20_000, 200
QUEUE = "chaos-queue"
LAST = "last"
EVENT_TIME_BEHIND_MS = 4 * 3_600_000
"""Events happened that long before they are sent: what closes all windows in the end is then not ahead of its time."""
_EVERY_S = 0.25
_QUEUE_TRANSACTION = 50
_BEATS_S = 120
_LARGE_BYTES = 1_400_000


@dataclass
class Rates:
    """Records a second."""

    numbers: int = 6_000
    events: int = 120
    others: int = 60
    queue: int = 100
    hot_share: float = 0.0
    aborted_share: float = 0.1


class Feeding:
    """Three threads of producers that wait out every fault; `stop` returns when all that was sent is acknowledged."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.rates = Rates()
        self._bootstrap = bootstrap
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._poison: list[tuple[str, bytes | None, bytes | dict[str, object]]] = []
        self._lock = threading.Lock()
        self._refused = itertools.count()
        self._beats: Counter[str] = Counter()
        self.sent = 0

    def start(self) -> None:
        """People first: what is joined with them must find them."""
        people = self._producer()
        for number in range(IDS):
            body = {"id": f"i{number:03d}", "name": f"name {number}"}
            at_ms = int(time.time() * 1000) - 2 * EVENT_TIME_BEHIND_MS
            people.produce("chaos-people", json.dumps(body).encode(), body["id"].encode(), timestamp=at_ms)
        people.flush(60)
        for run in (self._numbers, self._events, self._queue):
            thread = threading.Thread(target=run, name=run.__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Once more is a no-op."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    @contextmanager
    def at(self, **rates: float) -> Iterator[None]:
        """Send at these rates until the end of the block. What was sent at the rates before is in the topics when it begins."""
        usual, self.rates = self.rates, replace(self.rates, **rates)
        beats = Counter(self._beats)
        # The first may have begun before.
        if not wait_until(lambda: all(self._beats[name] >= beats[name] + 2 for name in beats), _BEATS_S):
            raise RuntimeError(f"the producers have not come to their new rates within {_BEATS_S} s")
        try:
            yield
        finally:
            self.rates = usual

    def poison(self, topic: str, key: bytes | None, value: bytes | dict[str, object]) -> None:
        """Send a bad record among the others; what is no bytes gets the time at which it is sent, unless it has one."""
        with self._lock:
            self._poison.append((topic, key, value))

    def large(self) -> bytes:
        """A record that its own topic takes and the topic of dead letters does not."""
        return b"{" + b"x" * _LARGE_BYTES

    def refused(self) -> dict[str, object]:
        """A record for which the processor raises, each time another one."""
        return {"id": "i000", "v": REFUSED + next(self._refused), "kind": "kind-0"}

    def close_windows(self) -> None:
        """A last event per partition, so much later that every window is over."""
        producer = self._producer()
        for partition in range(PARTITIONS):
            body = {"id": LAST, "ts": int(time.time() * 1000), "v": 0, "kind": LAST}
            producer.produce("chaos-events", json.dumps(body).encode(), LAST.encode(), partition=partition)
        producer.flush(60)

    def _now_ms(self) -> int:
        return int(time.time() * 1000) - EVENT_TIME_BEHIND_MS

    def _producer(self, **more: object) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap, "partitioner": "murmur2_random", "linger.ms": 50, "acks": "all",
                "enable.idempotence": True, "message.timeout.ms": 0 if "transactional.id" not in more else 30_000,
                "message.max.bytes": 8 << 20, "compression.type": "lz4", "queue.buffering.max.messages": 2_000_000,
                "log_level": 0, **more,
            }
        )  # fmt: skip

    def _beat(self, send: Callable[[float], None]) -> None:
        """Call `send` with the seconds since the last time, a few times a second."""
        last = time.monotonic()
        while not self._stop.wait(_EVERY_S):
            now = time.monotonic()
            # A machine that stood still does not make up for all of it at once.
            send(min(2.0, now - last))
            last = now
            self._beats[threading.current_thread().name] += 1

    def _numbers(self) -> None:
        producer = self._producer()
        keys = [f"k{n:05d}" for n in range(KEYS)]
        chance = random.Random(self._random.random())

        def send(seconds: float) -> None:
            messages = []
            for _ in range(int(self.rates.numbers * seconds)):
                key = keys[0] if chance.random() < self.rates.hot_share else keys[int(chance.random() * KEYS)]
                n = int(chance.random() * 1_000_000)
                messages.append({"key": key.encode(), "value": b'{"id":"%s","n":%d}' % (key.encode(), n)})
            while messages:
                queued = producer.produce_batch("chaos-numbers", messages)
                self.sent += queued
                messages = [m for m in messages if "_error" in m]
                for message in messages:
                    del message["_error"]
                producer.poll(0.2 if messages else 0)
            if not self.rates.numbers:
                producer.flush(_BEATS_S)

        self._beat(send)
        producer.flush(300)

    def _events(self) -> None:
        producer = self._producer()
        chance = random.Random(self._random.random())
        sequence = 0

        def send(seconds: float) -> None:
            nonlocal sequence
            for topic, name, rate in (
                ("chaos-events", "v", self.rates.events),
                ("chaos-others", "w", self.rates.others),
            ):
                for _ in range(int(rate * seconds)):
                    sequence += 1
                    key = f"i{int(chance.random() * IDS):03d}"
                    body = {"id": key, "ts": self._now_ms(), name: 1000 + sequence}
                    if name == "v":
                        body["kind"] = f"kind-{sequence % 7}"
                    producer.produce(topic, json.dumps(body).encode(), key.encode())
                    self.sent += 1
            with self._lock:
                poison, self._poison = self._poison, []
            for topic, own_key, value in poison:
                raw = value if isinstance(value, bytes) else json.dumps({"ts": self._now_ms(), **value}).encode()
                producer.produce(topic, raw, own_key)
                self.sent += 1
            producer.poll(0) if self.rates.events else producer.flush(_BEATS_S)

        self._beat(send)
        producer.flush(300)

    def _queue(self) -> None:
        """Elements in transactions, of which some are aborted; one that a fault ends is followed by another producer."""
        chance = random.Random(self._random.random())
        element = 0
        producer: Producer | None = None

        def send(seconds: float) -> None:
            nonlocal element, producer
            try:
                if producer is None:
                    producer = self._producer(
                        **{"transactional.id": "chaos-queue-feeder", "transaction.timeout.ms": 30_000}
                    )
                    producer.init_transactions(30)
                for _ in range(max(1, int(self.rates.queue * seconds) // _QUEUE_TRANSACTION)):
                    producer.begin_transaction()
                    for _ in range(_QUEUE_TRANSACTION):
                        element += 1
                        key = f"q{int(chance.random() * IDS):03d}"
                        body = json.dumps({"id": key, "n": element}).encode()
                        producer.produce(QUEUE, body, key.encode())
                    if chance.random() < self.rates.aborted_share:
                        # What is aborted is to have been in the topic.
                        producer.flush(30)
                        producer.abort_transaction(30)
                    else:
                        producer.commit_transaction(30)
                        self.sent += _QUEUE_TRANSACTION
            except KafkaException:
                with suppress(KafkaException):
                    if producer is not None:
                        producer.abort_transaction(5)
                producer = None

        self._beat(send)

"""Measures the time from the production of an event to the first committed output that contains it, beside Kafka Streams.

    python bench/latency.py --rates 1000,10000

Events arrive at a fixed rate, each with the time of its production as its event time. A `read_committed` consumer reads the
outputs while they arrive. A count of n contains the first n events of its key and window, so each event is matched with the
first output that contains it. At the end every event must be contained in an output.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated

if __name__ == "__main__":
    # So that it runs by its path, from any folder and without PYTHONPATH.
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / "include"), str(root)]

import numpy as np
import typer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from rich.console import Console

from bench.case import INPUT_TOPIC, OUTPUT_TOPIC, PARTITIONS, QUIET, WINDOW_MS, Case
from bench.errors import BenchFailed
from bench.latency_report import markdown, picture, ratio, table
from bench.load import create_topics, new_broker
from bench.machine import ROOT, machine
from bench.pages import publish
from bench.program import run_program
from bench.programs import COUNTING
from bench.report import GOALS
from bench.sides import Side, StreamsSide, TidemarkSide, running
from tidemark.processes import wait_until
from tidemark.settings import Settings

COMMIT_INTERVAL_MS = 100
KEYS = 50_000
_CASE = Case(
    name="latency",
    about=f"windowed count, {KEYS:,} keys, commit per {COMMIT_INTERVAL_MS} ms",
    keys=KEYS,
    interval_ms=1_000,
    events=0,
    commit_interval_ms=COMMIT_INTERVAL_MS,
    max_batch_records=1_000_000,
    program=COUNTING,
)
RATE, RUN_S = 10_000, 40.0
"""The rate in events per second that `make bench` compares, and how long a run lasts after warming up."""
_WARM_UP_S = 20.0
_FIRST_S = 180.0
_REST_S = 60.0
_EVERY_S = 0.005
console = Console()


@dataclass(frozen=True)
class Latency:
    """The latencies of one run in milliseconds. `missing` events were in no output."""

    side: str
    rate: int
    alternation: int
    events: int
    missing: int
    p50: float
    p95: float
    p99: float
    longest: float


class Events:
    """The events that were sent, and those that an output has contained. Safe to use from two threads."""

    def __init__(self) -> None:
        self.first_output = threading.Event()
        self._sent: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._contained: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._found: list[tuple[float, float]] = []
        self._lock = threading.Lock()
        self._count = 0

    def sent(self, key: str, window_ms: int, at_s: float) -> None:
        """Note an event of a key and window. Those of one key must be noted in the order in which they are produced."""
        with self._lock:
            self._sent[key, window_ms].append(at_s)
            self._count += 1

    def contained(self, key: str, window_ms: int, count: int, at_s: float) -> None:
        """Note an output that contains the first `count` events of a key and window."""
        with self._lock:
            sent = self._sent[key, window_ms]
            before = self._contained[key, window_ms]
            if count > len(sent):
                raise BenchFailed(
                    f"an output counts {count} events of {key} in window {window_ms}; {len(sent)} were sent"
                )
            self._found += [(sent_s, at_s - sent_s) for sent_s in sent[before:count]]
            self._contained[key, window_ms] = max(before, count)
        self.first_output.set()

    @property
    def missing(self) -> int:
        """The number of events that no output has contained so far."""
        with self._lock:
            return self._count - len(self._found)

    def latencies_ms(self, since_s: float) -> np.ndarray:
        """Return the latencies of the events that were sent at or after `since_s`."""
        with self._lock:
            return np.array([1000 * latency for sent_s, latency in self._found if sent_s >= since_s])


def feed(bootstrap: str, rate: int, events: Events, stop: threading.Event) -> None:
    """Produce `rate` events per second until stopped. Blocks."""
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET, "partitioner": "murmur2_random", "linger.ms": 1})
    began, number = time.monotonic(), 0
    while not stop.wait(_EVERY_S):
        due = int((time.monotonic() - began) * rate)
        for each in range(number, due):
            now_ms = time.time_ns() // 1_000_000
            key = f"p{each % KEYS:05d}"
            value = f'{{"patient_id":"{key}","beat_ms":{now_ms},"ibi_ms":800,"recording":"data1"}}'
            events.sent(key, now_ms // WINDOW_MS * WINDOW_MS, time.monotonic())
            producer.produce(INPUT_TOPIC, value, key, timestamp=now_ms)
        number = max(number, due)
        producer.poll(0)
    if producer.flush(_REST_S):
        raise BenchFailed("the broker did not take all events")


def read(bootstrap: str, events: Events, stop: threading.Event) -> None:
    """Read committed outputs until stopped. Blocks."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            **QUIET,
            "group.id": "latency",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(OUTPUT_TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    try:
        while not stop.is_set():
            for message in consumer.consume(1000, 0.01):
                if message.error():
                    raise KafkaException(message.error())
                output = json.loads(message.value() or b"{}")
                events.contained(output["patient_id"], output["window_start"], output["pulses"], time.monotonic())
    finally:
        consumer.close()


def measure(side: Side, rate: int, seconds: float, alternation: int, folder: Path, settings: Settings) -> Latency:
    """Measure one run with a broker of its own. Blocks. Raises `BenchFailed`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = folder / "side.log"
    with new_broker(folder / "broker", settings) as broker:
        create_topics(broker.bootstrap, _CASE.program)
        events, no_more, stop = Events(), threading.Event(), threading.Event()
        command = side.command(_CASE, broker.bootstrap, folder)
        with ThreadPoolExecutor(2) as pool, running(command, log) as started:
            work = [
                pool.submit(feed, broker.bootstrap, rate, events, no_more),
                pool.submit(read, broker.bootstrap, events, stop),
            ]

            def has_failed() -> bool:
                return started.process.poll() is not None or any(each.done() and each.exception() for each in work)

            try:
                wait_until(lambda: has_failed() or events.first_output.is_set(), _FIRST_S)
                if has_failed() or not events.first_output.is_set():
                    raise BenchFailed(f"{side.name} has given no output; its log is {log}")
                no_more.wait(_WARM_UP_S)
                since_s = time.monotonic()
                no_more.wait(seconds)
                no_more.set()
                work[0].result()
                wait_until(lambda: has_failed() or not events.missing, _REST_S, 0.1)
            finally:
                no_more.set()
                stop.set()
            work[1].result()
    found = events.latencies_ms(since_s)
    p50, p95, p99 = (float(each) for each in np.percentile(found, [50, 95, 99]))
    if not events.missing:
        shutil.rmtree(folder)
    return Latency(side.name, rate, alternation, len(found), events.missing, p50, p95, p99, float(found.max()))


def measure_all(rates: list[int], seconds: float, alternations: int, folder: Path, settings: Settings) -> list[Latency]:
    """Measure both sides at each rate, alternating, print a line about each run, and write `latency.json` to `folder`."""
    sides: list[Side] = [TidemarkSide(settings), StreamsSide(settings)]
    results: list[Latency] = []
    for rate, alternation, side in product(rates, range(alternations), sides):
        place = ROOT / "bench" / "build" / "latency" / f"{rate}-{side.name}-{alternation + 1}"
        result = measure(side, rate, seconds, alternation, place, settings)
        results.append(result)
        console.print(
            f"{rate} per second, {alternation + 1} {side.name}: p50 {result.p50:.0f} ms, p95 {result.p95:.0f} ms, "
            f"p99 {result.p99:.0f} ms, longest {result.longest:.0f} ms; missing={result.missing}",
            highlight=False,
            soft_wrap=True,
        )
        (folder / "latency.json").write_text(json.dumps([asdict(r) for r in results], indent=1), encoding="utf-8")
    return results


def main(
    rates: Annotated[str, typer.Option(help="events per second, separated by commas")] = "1000,10000",
    seconds: Annotated[float, typer.Option(min=1, help="length of a run after warming up")] = RUN_S,
    alternations: Annotated[int, typer.Option(min=1, help="number of runs of each side, alternating")] = 3,
    write_docs: Annotated[bool, typer.Option(help="write table and plot to docs/latency.md")] = False,
) -> None:
    """Measure at each rate. The exit code is 1 if an event is in no output."""
    settings = Settings.load()
    folder = ROOT / "bench" / "results" / datetime.now(UTC).strftime("latency-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    results = measure_all([int(each) for each in rates.split(",")], seconds, alternations, folder, settings)
    console.print(table(results))
    (folder / "summary.md").write_text(markdown(results, machine(settings)), encoding="utf-8")
    picture(folder / "latency.png", results)
    if write_docs:
        publish(ROOT / "docs" / "latency.md", folder / "summary.md", folder / "latency.png", "latencies of each run")
    missing = sum(result.missing for result in results)
    ratios = " ".join(f"{rate}={ratio(results, rate):.2f}" for rate in sorted({result.rate for result in results}))
    print(f"latency-bench: {ratios} target={GOALS['latency']:.2f} missing={missing}")
    if missing:
        raise typer.Exit(1)


if __name__ == "__main__":
    run_program("latency-bench", lambda: typer.run(main))

"""Replay recorded heartbeats into a topic."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tidemark.settings import Settings

log = logging.getLogger(__name__)

_LOG_EVERY = 10_000


def replay(
    patients: Annotated[int | None, typer.Option(help="number of patients; default: 500, or what --rate needs")] = None,
    rate: Annotated[float | None, typer.Option(help="events per second; default: the speed of the recordings")] = None,
    events: Annotated[
        int | None, typer.Option(help="stop after this many events; default: replay until stopped")
    ] = None,
    start_ms: Annotated[int | None, typer.Option(help="event time of the first beat, epoch milliseconds")] = None,
    late: Annotated[float, typer.Option(help="share of beats that arrive after their window's grace")] = 0.0,
    out_of_order: Annotated[float, typer.Option(help="share of beats that arrive up to 4 s out of order")] = 0.0,
    bad: Annotated[float, typer.Option(help="share of records that cannot be processed")] = 0.0,
    seed: Annotated[int, typer.Option(help="the same seed makes the same patients and the same disorder")] = 0,
    topic: Annotated[str, typer.Option(help="topic to write to")] = "pulse-events",
) -> None:
    """Replay recorded heartbeats: each patient is a recording, looped and shifted; see `docs/heartbeats.md`.

    Without --events, replays in real time until it is stopped. With --events, replays as fast as the broker, or --rate,
    allows, and begins far enough in the past that no beat is ahead of the clock.
    """
    from demo.heartbeats.disorder import Disorder
    from demo.heartbeats.producer import ReplayProducer
    from demo.heartbeats.replay import Replay, ReplayOptions
    from tidemark.kafka.clients import librdkafka_config

    disorder = Disorder(seed, late, out_of_order, bad)
    options = ReplayOptions(topic, patients, rate, events, start_ms, disorder)
    settings = Settings.load()
    producer = ReplayProducer(topic, librdkafka_config(settings), settings.broker_timeout_ms / 1000)
    running = Replay(options, producer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
            task = bar.add_task(f"beats to {topic}", total=events)
            sent = running.run(lambda so_far: bar.update(task, completed=so_far))
    else:
        logging.getLogger("tidemark").setLevel(logging.INFO)
        sent = running.run(_Lines())
    print(f"{sent} events sent to {topic}", file=sys.stderr)


class _Lines:
    """Logs the progress as a line now and then."""

    def __init__(self) -> None:
        self._next = _LOG_EVERY

    def __call__(self, sent: int) -> None:
        if sent >= self._next:
            log.info("replayed: events=%d", sent)
            self._next = sent + _LOG_EVERY

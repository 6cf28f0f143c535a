"""Write recorded heartbeats to a topic, and show how many."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from demo.heartbeats.producer import ReplayProducer
from demo.heartbeats.replay import Replay, ReplayOptions
from tidemark.cli.output import Output
from tidemark.kafka.clients import librdkafka_config
from tidemark.processes import stop_on_signals
from tidemark.settings import Settings

log = logging.getLogger(__name__)

_LOG_EVERY = 10_000


def write_heartbeats(options: ReplayOptions, output: Output) -> None:
    """Replay until all events are written or the process is asked to end. A terminal shows a bar, a log has lines."""
    settings = Settings.load()
    producer = ReplayProducer(options.topic, librdkafka_config(settings), settings.broker_timeout_ms / 1000)
    running = Replay(options, producer)
    stop_on_signals(running.stop)
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
            task = bar.add_task(f"beats to {options.topic}", total=options.events)
            sent = running.run(lambda so_far: bar.update(task, completed=so_far))
    else:
        logging.getLogger("tidemark").setLevel(logging.INFO)
        sent = running.run(_Lines())
    output.note(f"{sent} events sent to {options.topic}")
    output.show({"topic": options.topic, "events": sent})


class _Lines:
    """Logs the progress as a line now and then."""

    def __init__(self) -> None:
        self._next = _LOG_EVERY

    def __call__(self, sent: int) -> None:
        if sent >= self._next:
            log.info("replayed: events=%d", sent)
            self._next = sent + _LOG_EVERY

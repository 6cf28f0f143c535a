"""Keep warm copies of an application's stores on this machine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from rich.live import Live
from rich.logging import RichHandler

from tidemark.cli.output import console
from tidemark.listing import Listing
from tidemark.processes import raise_limit_of_open_files, stop_on_signals
from tidemark.settings import Settings
from tidemark.standby.process import run_standby
from tidemark.standby.progress import CatchUpRate
from tidemark.topology_loader import load

log = logging.getLogger("tidemark.standby")

_LOG_EVERY_S = 5.0


def run(topology: str, number: int) -> None:
    """Follow the changelogs of an application, and show how far, until the process is asked to end."""
    raise_limit_of_open_files()
    logging.getLogger("tidemark").setLevel(logging.INFO)
    plan = load(topology).plan()
    stop = threading.Event()
    stop_on_signals(stop)
    terminal = console(stderr=True)
    settings = Settings.load()
    if not terminal.is_terminal:
        run_standby(plan, settings, number, topology, stop, LogLines())
        return
    # Log lines are printed above the table instead of through it.
    logging.getLogger().handlers = [RichHandler(console=terminal, show_path=False)]
    with Live(console=terminal, refresh_per_second=2) as live:
        run_standby(plan, settings, number, topology, stop, lambda paces: live.update(table_of(paces)))


class LogLines:
    """Logs a line for each copy every few seconds, if there is no terminal."""

    def __init__(self) -> None:
        self._logged_s = 0.0

    def __call__(self, paces: Sequence[CatchUpRate]) -> None:
        if time.monotonic() - self._logged_s < _LOG_EVERY_S:
            return
        self._logged_s = time.monotonic()
        for pace in paces:
            log.info(
                "standby: task=%s store=%s at=%d to=%d lag=%d rate=%.0f/s left=%s",
                pace.task, pace.store, pace.next_offset, pace.end_offset, pace.lag_offsets, pace.records_per_second,
                _left(pace),
            )  # fmt: skip


def table_of(paces: Sequence[CatchUpRate]) -> Listing:
    """Return a table with one row per copy."""
    numbers = ("offset", "end", "lag", "records/s", "time left")
    listing = Listing("task", "store", *numbers, right=numbers)
    for pace in paces:
        listing.add(
            pace.task,
            pace.store,
            f"{pace.next_offset:,}",
            f"{pace.end_offset:,}",
            f"{pace.lag_offsets:,}",
            f"{pace.records_per_second:,.0f}",
            _left(pace),
        )
    return listing


def _left(pace: CatchUpRate) -> str:
    if pace.fault is not None:
        return "never: not followed"
    if pace.lag_offsets == 0:
        return "none"
    return "—" if pace.remaining_s is None else f"{pace.remaining_s:.0f} s"

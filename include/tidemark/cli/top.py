"""One screen of all applications on this machine, which updates itself."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from rich.console import Group
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from tidemark.cli.keys import key_presses
from tidemark.cli.output import Output, as_json, console
from tidemark.cli.status import STATE_COLOURS
from tidemark.listing import Listing
from tidemark.operations.machine.overview import NOT_ASKED, InstanceOverview, LagReader, Lags, overview
from tidemark.settings import Settings
from tidemark.supervision.local_instances import local_instances

_LAG_EVERY_S = 5.0
"""How often Kafka is asked; files are read for every frame."""


def show_top(output: Output, every_s: float, *, once: bool) -> None:
    """Show the screen until `q` or Ctrl-C, or one frame if that is asked for or there is no terminal."""
    settings = Settings.load()
    reader = LagReader(settings)
    if once or output.is_json or not console().is_terminal:
        now_s = time.time()
        lags = reader.read(local_instances(settings.var_dir, now_s))
        found = overview(settings, now_s, lags)
        output.show(
            {
                "time_ms": int(now_s * 1000),
                "bootstrap_servers": settings.bootstrap_servers,
                "fault": lags.fault or None,
                "instances": [_form(each) for each in found],
            },
            frame(settings, now_s, found, lags),
        )
        return
    with suppress(KeyboardInterrupt):
        _watch(settings, reader, every_s)


def _watch(settings: Settings, reader: LagReader, every_s: float) -> None:
    """Draw frames until `q` is pressed."""
    lag = _LagThread(settings, reader)
    lag.start()
    with key_presses() as pressed, Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            now_s = time.time()
            found = overview(settings, now_s, lag.newest)
            live.update(frame(settings, now_s, found, lag.newest, keys="q quits"), refresh=True)
            if pressed(every_s) in {"q", "Q"}:
                return


class _LagThread(threading.Thread):
    """Asks Kafka again and again, so that a silent broker does not stop the screen, nor its end: nobody waits for it."""

    def __init__(self, settings: Settings, reader: LagReader) -> None:
        super().__init__(name="lag", daemon=True)
        self.newest = NOT_ASKED
        self._settings = settings
        self._reader = reader

    def run(self) -> None:
        while True:
            self.newest = self._reader.read(local_instances(self._settings.var_dir, time.time()))
            time.sleep(_LAG_EVERY_S)


def frame(settings: Settings, now_s: float, found: list[InstanceOverview], lags: Lags, keys: str = "") -> Group:
    """Return one frame: the time, a table with one row per instance, and what is wrong."""
    at = time.strftime("%H:%M:%S", time.localtime(now_s))
    applications = len({each.facts.application for each in found})
    parts = [
        f"tidemark top  {at}", f"applications: {applications}, instances: {len(found)}",
        f"brokers {settings.bootstrap_servers}", *([keys] if keys else []),
    ]  # fmt: skip
    numbers = ("records/s", "lag", "last commit", "batch", "memory")
    listing = Listing("application", "instance", "state", *numbers, "note", right=numbers)
    for each in found:
        facts = each.facts
        listing.add(
            facts.application,
            str(facts.instance),
            Text(facts.state, style=STATE_COLOURS.get(facts.state, "yellow")),
            "" if facts.records_per_second is None or not facts.alive else f"{facts.records_per_second:,.0f}",
            "—" if each.lag_offsets is None else f"{each.lag_offsets:,}",
            "" if facts.seconds_since_commit is None else f"{facts.seconds_since_commit:.0f} s ago",
            "" if facts.batch is None else str(facts.batch),
            "" if each.memory_bytes is None else decimal(each.memory_bytes),
            each.note,
        )
    nothing = f"no instance has run here: {settings.var_dir} holds no run file"
    return Group(
        Text("   ".join(parts), style="bold"),
        listing if found else Text(nothing),
        *([Text(lags.fault, style="red")] if lags.fault else []),
    )


def _form(each: InstanceOverview) -> dict[str, object]:
    return {
        **as_json(each.facts), "lag_offsets": each.lag_offsets, "memory_bytes": each.memory_bytes, "note": each.note,
    }  # fmt: skip

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
from tidemark.cli.output import Output, console
from tidemark.cli.status import STATE_COLOURS, instance_form
from tidemark.listing import Listing
from tidemark.operations.machine.instance_load import NOT_ASKED, InstanceLoad, LagReader, Lags, instance_loads
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
        found = instance_loads(settings, now_s, lags)
        output.show(
            {
                "time_ms": int(now_s * 1000),
                "bootstrap_servers": settings.bootstrap_servers,
                "fault": lags.fault or None,
                "instances": [_form(each, now_s) for each in found],
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
            found = instance_loads(settings, now_s, lag.newest)
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


def frame(settings: Settings, now_s: float, found: list[InstanceLoad], lags: Lags, keys: str = "") -> Group:
    """Return one frame: the time, a table with one row per instance, and what is wrong."""
    at = time.strftime("%H:%M:%S", time.localtime(now_s))
    applications = len({each.instance.application for each in found})
    parts = [
        f"tidemark top  {at}", f"applications: {applications}, instances: {len(found)}",
        f"brokers {settings.bootstrap_servers}", *([keys] if keys else []),
    ]  # fmt: skip
    numbers = ("records/s", "lag", "last commit", "batch", "memory")
    listing = Listing("application", "instance", "state", *numbers, "note", right=numbers)
    for each in found:
        instance = each.instance
        committed_s = instance.seconds_since_commit(now_s)
        listing.add(
            instance.application,
            str(instance.instance),
            Text(instance.state, style=STATE_COLOURS.get(instance.state, "yellow")),
            "" if instance.records_per_second is None else f"{instance.records_per_second:,.0f}",
            "—" if each.lag_offsets is None else f"{each.lag_offsets:,}",
            "" if committed_s is None else f"{committed_s:.0f} s ago",
            "" if instance.batch is None else str(instance.batch),
            "" if each.memory_bytes is None else decimal(each.memory_bytes),
            each.note,
        )
    nothing = f"no instance has run here: {settings.var_dir} holds no run file"
    return Group(
        Text("   ".join(parts), style="bold"),
        listing if found else Text(nothing),
        *([Text(lags.fault, style="red")] if lags.fault else []),
    )


def _form(each: InstanceLoad, now_s: float) -> dict[str, object]:
    return {
        **instance_form(each.instance, now_s),
        "lag_offsets": each.lag_offsets,
        "memory_bytes": each.memory_bytes,
        "note": each.note,
    }

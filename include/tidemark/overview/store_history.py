"""Keys and bytes of an application's stores over the last days, from the samples that `tidemark stores` and the retention
check have kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.checks.store_growth import StoreSample, parse_line
from tidemark.errors import TidemarkError
from tidemark.overview.stores import StoreView
from tidemark.stores.directory import STANDBY_PREFIX

SHOWN_MS = 30 * 86_400_000
MOST_POINTS = 120
"""More samples than this are thinned out evenly; the first and the last stay."""


@dataclass(frozen=True)
class SizePoint:
    """The size of a store at a time, summed over its tasks; None if it was not known."""

    time_ms: int
    keys: int | None
    bytes_disk: int | None


@dataclass(frozen=True)
class SizeHistory:
    """The points of each store, the oldest first, by the store's name. `fault`: why some are missing."""

    of: Mapping[str, tuple[SizePoint, ...]] = field(default_factory=dict)
    fault: str | None = None

    def with_present(self, stores: Iterable[StoreView], now_ms: int) -> SizeHistory:
        """Return the history with the present sizes as its last points."""
        present = _Sums()
        for row in (row for row in stores if not row.is_old):
            present.add(row.store, now_ms, row.holder, row.keys.value, row.bytes_disk.value)
        names = sorted({*self.of, *present.sizes})
        return SizeHistory({name: (*self.of.get(name, ()), *present.points(name)) for name in names}, self.fault)


class _Sums:
    """Sizes by store and time, summed over the tasks of all instances; copies of standbys do not count."""

    def __init__(self) -> None:
        self.sizes: dict[str, dict[int, list[int | None]]] = {}

    def add(self, store: str, time_ms: int, holder: str | None, keys: int | None, size: int | None) -> None:
        if holder is None or holder.startswith(STANDBY_PREFIX):
            return
        known = self.sizes.setdefault(store, {}).setdefault(time_ms, [None, None])
        for number, value in enumerate((keys, size)):
            if value is not None:
                known[number] = (known[number] or 0) + value

    def forget(self, before_ms: int) -> None:
        for times in self.sizes.values():
            for time_ms in [at for at in times if at < before_ms]:
                del times[time_ms]

    def points(self, store: str) -> tuple[SizePoint, ...]:
        return tuple(SizePoint(time_ms, *known) for time_ms, known in sorted(self.sizes.get(store, {}).items()))


class SizeHistoryReader:
    """Reads one application's history. It keeps the sums, so that each look reads only what was appended since.

    Not safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._inode, self._read_bytes, self._line, self._sums = 0, 0, 0, _Sums()
        self._fault: str | None = None

    def read(self, now_ms: int) -> SizeHistory:
        """Return the points of the last 30 days. Reads the file's new lines. Does not raise.

        A broken line is left out, and named at every look until it is deleted.
        """
        try:
            self._read_on()
        except OSError as error:
            self._forget()
            return SizeHistory(fault=str(error))
        self._sums.forget(now_ms - SHOWN_MS)
        found = {name: _thinned(self._sums.points(name)) for name in sorted(self._sums.sizes)}
        return SizeHistory({name: points for name, points in found.items() if points}, self._fault)

    def _read_on(self) -> None:
        try:
            opened = self._path.open("rb")
        except FileNotFoundError:
            self._forget()
            return
        with opened as file:
            known = os.fstat(file.fileno())
            if known.st_ino != self._inode or known.st_size < self._read_bytes:
                # It is another file, such as one that was edited.
                self._forget()
                self._inode = known.st_ino
            file.seek(self._read_bytes)
            # A line that is being written has no end yet, and is read the next time.
            text, end, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(text) + len(end)
            for line in text.decode(errors="replace").splitlines():
                self._line += 1
                try:
                    self._take(parse_line(line, self._path, self._line))
                except TidemarkError as error:
                    self._fault = str(error)

    def _take(self, sample: StoreSample) -> None:
        self._sums.add(sample.store, sample.time_ms, sample.holder, sample.keys, sample.bytes_disk)


def _thinned(points: tuple[SizePoint, ...]) -> tuple[SizePoint, ...]:
    if len(points) <= MOST_POINTS:
        return points
    last = len(points) - 1
    return tuple(points[round(number * last / (MOST_POINTS - 1))] for number in range(MOST_POINTS))

"""The metrics of a standby: how far its copies are, and how large."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rocksdict import Cache

from tidemark.metrics import table
from tidemark.metrics.metric import Readings
from tidemark.metrics.stores import read_store
from tidemark.standby.queries import StandbyStores


@dataclass(frozen=True)
class StandbyMetrics:
    """Reads everything for a scrape, in the thread of its caller. `monotonic` returns seconds."""

    stores: StandbyStores
    cache: Cache
    monotonic: Callable[[], float] = time.monotonic

    def read(self, readings: Readings) -> None:
        """Add everything to the values of a scrape. Waits for a write to a store that runs, not for brokers."""
        now_s = self.monotonic()
        readings.add(table.ROCKSDB_CACHE, self.cache.get_usage())
        for copy in self.stores.followed:
            place = (str(copy.task), copy.job.spec.name)
            readings.add(table.STANDBY_LAG, copy.lag_offsets, *place)
            readings.add(table.STANDBY_RECORDS, copy.records, *place)
            readings.add(table.STANDBY_WHOLE, int(copy.is_whole), *place)
            readings.add(table.STANDBY_FAULT, int(copy.fault is not None), *place)
            if copy.is_whole:
                readings.add(table.STANDBY_LAG_TIME, now_s - copy.complete_s, *place)
            read_store(readings, copy.task, copy.job.spec.name, copy.figures())

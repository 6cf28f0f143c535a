"""The metrics of a standby: how far its copies are, and how large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rocksdict import Cache

from tidemark.metrics import table
from tidemark.metrics.metric import Readings
from tidemark.metrics.stores import read_store
from tidemark.standby.queries import StandbyStores


@dataclass(frozen=True)
class StandbyMetrics:
    """Reads everything for a scrape, in the thread of its caller. `clock` returns epoch milliseconds."""

    stores: StandbyStores
    cache: Cache
    clock: Callable[[], int]

    def read(self, readings: Readings) -> None:
        """Add everything to the values of a scrape. Waits for a write to a store that runs, not for brokers."""
        now_ms = self.clock()
        readings.add(table.ROCKSDB_CACHE, self.cache.get_usage())
        for copy in self.stores.followed:
            place = (str(copy.task), copy.job.spec.name)
            readings.add(table.STANDBY_LAG, copy.lag_offsets, *place)
            readings.add(table.STANDBY_RECORDS, copy.records, *place)
            readings.add(table.STANDBY_WHOLE, int(copy.is_whole), *place)
            readings.add(table.STANDBY_FAULT, int(copy.fault is not None), *place)
            if copy.checkpoint is not None and copy.is_whole:
                readings.add(table.STANDBY_LAG_TIME, max(0, now_ms - copy.checkpoint.commit_time_ms) / 1000, *place)
            read_store(readings, copy.task, copy.job.spec.name, copy.figures())

"""The metrics of stores, which instances and standbys share."""

from __future__ import annotations

from tidemark.metrics.metric import Readings
from tidemark.metrics.table import ROCKSDB, STORE_KEYS
from tidemark.names import TaskId
from tidemark.stores.protocol import StoreFigures


def read_store(readings: Readings, task: TaskId, store: str, figures: StoreFigures | None) -> None:
    """Add the size of one store to a scrape; nothing if it is closed."""
    if figures is None:
        return
    readings.add(STORE_KEYS, figures.keys, str(task), store)
    for name, value in figures.properties.items():
        readings.add(ROCKSDB[name], value, str(task), store)

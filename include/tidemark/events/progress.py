"""Restores as progress bars, for a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from tidemark.clock import duration
from tidemark.names import TopicPartition
from tidemark.restore.listener import RestoreProgress


class RichRestoreListener:
    """A `RestoreListener` with one bar per store and changelog partition: offsets done, records per second, time left.

    Used as a context manager around restores, which may call it from several threads at once. If the console is not a
    terminal, only the end of each restore is printed.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[done]:,}/{task.fields[offsets]:,} offsets"),
            TextColumn("{task.fields[rate]:>9,.0f} records/s"),
            TextColumn("{task.fields[left]}", markup=False),
            console=console or Console(),
        )
        self._known: dict[tuple[str, TopicPartition], TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> RichRestoreListener:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw no bars while a person is asked a question."""
        self._bars.stop()
        yield
        self._bars.start()

    def on_restore_start(self, progress: RestoreProgress) -> None:
        self._show(progress, "")

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        left = progress.remaining_s
        self._show(progress, "" if left is None else f"{duration(left)} left")

    def on_restore_end(self, progress: RestoreProgress) -> None:
        self._show(progress, f"done in {duration(progress.elapsed_s)}")

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        self._show(progress, "suspended")

    def _show(self, progress: RestoreProgress, left: str) -> None:
        # An end is that of the last record, while a savepoint's offset may also count the marker of its transaction.
        offsets = max(0, progress.end_offset - progress.start_offset)
        done = progress.next_offset - progress.start_offset
        # A restore without offsets is done when it starts.
        total, completed = (offsets, done) if offsets > 0 else (1, 1)
        fields: dict[str, Any] = {
            "done": done, "offsets": offsets, "rate": progress.records_per_second, "left": left,
        }  # fmt: skip
        key = (progress.store, progress.changelog)
        with self._lock:
            if key in self._known:
                self._bars.update(self._known[key], total=total, completed=completed, **fields)
            else:
                name = f"{progress.store}  {progress.changelog}"
                self._known[key] = self._bars.add_task(name, total=total, completed=completed, **fields)

"""The process that loads changelog partitions into stores for `restore.loader_pool`. It imports little, to start fast.

It sends its progress, and at the end None or the error. It ends when its caller does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tidemark.atomic_file import keep_files_private
from tidemark.errors import TidemarkError
from tidemark.parent_death import end_with_caller
from tidemark.restore.listener import RestoreListener, RestoreProgress
from tidemark.restore.restorer import RestoreJob, Restorer
from tidemark.restore.table_reader import NoTableReader
from tidemark.stores.rocksdb import RocksStore

_TELL_S = 0.2


@dataclass(frozen=True)
class LoadRequest:
    """A request to the process, see `Restorer.build_whole`."""

    client_config: Mapping[str, Any]
    stalled_after_s: float
    job: RestoreJob
    building: Path
    write_buffer_bytes: int

    def run(self, listener: RestoreListener) -> None:
        """Load the store. Blocks until it is complete and closed."""
        restorer = Restorer(self.client_config, self.stalled_after_s, listener, lambda _point: None, NoTableReader())
        restorer.build_whole(self.job, self.building, self._open, lambda: True)

    def _open(self, folder: Path) -> RocksStore:
        return RocksStore(folder, write_buffer_bytes=self.write_buffer_bytes, bulk=True)


class _Teller:
    """A `RestoreListener` that sends events to the caller: batches at most every `_TELL_S` seconds."""

    def __init__(self, caller: Connection) -> None:
        self._caller = caller
        self._told_s = 0.0

    def on_restore_start(self, progress: RestoreProgress) -> None:
        self._caller.send(("on_restore_start", progress))

    def on_batch_restored(self, progress: RestoreProgress) -> None:
        if progress.elapsed_s - self._told_s >= _TELL_S:
            self._told_s = progress.elapsed_s
            self._caller.send(("on_batch_restored", progress))

    def on_restore_end(self, progress: RestoreProgress) -> None:
        self._caller.send(("on_restore_end", progress))

    def on_restore_suspended(self, progress: RestoreProgress) -> None:
        """Do nothing: the caller ends the process instead."""


def main(descriptor: int) -> None:
    """Receive loads from the connection and do them, one after another.

    An error is sent to the caller, and ends the process.
    """
    keep_files_private()
    end_with_caller()
    with Connection(descriptor) as caller:
        while True:
            load: LoadRequest = caller.recv()
            try:
                load.run(_Teller(caller))
            except TidemarkError as error:
                caller.send(error)
                return
            caller.send(None)


if __name__ == "__main__":
    main(int(sys.argv[1]))

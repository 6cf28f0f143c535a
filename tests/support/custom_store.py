"""A store of a topology's own kind, in a folder."""

from __future__ import annotations

from pathlib import Path

from tidemark.stores.rocksdb import RocksStore


class OwnStore(RocksStore):
    """Made with its folder alone, as custom stores are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, write_buffer_bytes=1 << 20)

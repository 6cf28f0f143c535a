"""A partitioner of a test's."""

from __future__ import annotations


def by_key_length(key: bytes | None, value: bytes | None, partitions: int) -> int:
    return (0 if key is None else len(key) + (value is None)) % partitions

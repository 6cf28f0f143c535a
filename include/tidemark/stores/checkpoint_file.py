"""The `.checkpoint` file: a readable copy of a task's changelog offsets, in the text format of Kafka Streams.

The source of truth is the checkpoint in RocksDB; this file is for users and tools. It is written to a temporary file, fsynced
and renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidemark.atomic_file import replace_file
from tidemark.errors import TaskCorrupted
from tidemark.names import TopicPartition

VERSION = 0


def write_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file: version, number of entries, then one `topic partition offset` per line."""
    lines = [str(VERSION), str(len(offsets))]
    lines += [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    replace_file(path, "\n".join(lines) + "\n", synced=True)


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Read the offsets by changelog partition; {} if there is no file. Raises `TaskCorrupted` if it is inconsistent."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    try:
        version, count = int(lines[0]), int(lines[1])
        offsets: dict[TopicPartition, int] = {}
        for line in lines[2:]:
            topic, partition, offset = line.split(" ")
            offsets[TopicPartition(topic, int(partition))] = int(offset)
    except (ValueError, IndexError) as error:
        raise TaskCorrupted(
            f"{path} is not a checkpoint file ({error}); delete it; the store has a checkpoint of its own"
        ) from error
    if version != VERSION or count != len(offsets):
        raise TaskCorrupted(f"{path} names {count} entries of version {version} and holds {len(offsets)}; delete it")
    return offsets

"""Growth of stores: samples of their sizes, one JSON line each, and the growth between the first and the last sample."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tidemark.atomic_file import replace_file
from tidemark.clock import wall_clock_ms
from tidemark.errors import TidemarkError
from tidemark.folder_lock import locked_file
from tidemark.kafka.clients import librdkafka_config
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.topics import partition_counts
from tidemark.registry.reader import named_plan
from tidemark.settings import Settings
from tidemark.store_sizes import StoreSize, store_sizes
from tidemark.topology.plan import TopologyPlan

log = logging.getLogger(__name__)

MEASURES = ("keys", "bytes_disk", "offsets_topic", "bytes_topic")
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class StoreSample:
    """One line of the history: a `StoreSize` at a time. A number that was unknown is None."""

    time_ms: int
    application: str
    task: str
    store: str
    holder: str | None
    keys: int | None
    bytes_disk: int | None
    offsets_topic: int | None
    bytes_topic: int | None


@dataclass(frozen=True)
class StoreGrowth:
    """Growth per hour of one copy of one task's store; None if the number is not known at two different times."""

    task: str
    store: str
    holder: str | None
    samples: int
    hours: float
    keys: float | None
    bytes_disk: float | None
    offsets_topic: float | None
    bytes_topic: float | None


def sample_stores(
    plan: TopologyPlan, settings: Settings, clock: Callable[[], int] = wall_clock_ms
) -> tuple[list[StoreSize], list[StoreSample]]:
    """Measure every store on this machine and in its topic, and append the result to the history. Blocks.

    Old copies are left out of the history: they never change, and sums over it would count their tasks twice. An application
    that has never run has no samples. Raises `OutcomeUnknown` if no broker answers.
    """
    admin = AdminClient(librdkafka_config(settings))
    ends = EndOffsets(admin, settings.broker_timeout_ms / 1000)
    sizes = store_sizes(named_plan(plan, settings, admin), partition_counts(admin, settings), ends, settings)
    samples = samples_of(sizes, plan.application_id, clock())
    append(
        history_path(settings.var_dir, plan.application_id),
        [sample for sample, size in zip(samples, sizes, strict=True) if not size.is_old],
    )
    return sizes, samples


def histories(var_dir: Path) -> list[Path]:
    """Return the paths of the histories of all applications, sorted."""
    return sorted(history_path(var_dir, "app").parent.glob("*.jsonl"))


def history_path(var_dir: Path, application_id: str) -> Path:
    """Return the path of an application's history."""
    return var_dir / "store-sizes" / f"{application_id}.jsonl"


def samples_of(sizes: Sequence[StoreSize], application_id: str, now_ms: int) -> list[StoreSample]:
    """Convert sizes that were just measured to samples of the history."""
    return [
        StoreSample(
            time_ms=now_ms,
            application=application_id,
            task=str(row.task),
            store=row.store,
            holder=row.holder,
            keys=row.keys.value,
            bytes_disk=row.bytes_disk.value,
            offsets_topic=row.offsets_topic.value,
            bytes_topic=row.bytes_topic.value,
        )
        for row in sizes
    ]


def append(path: Path, samples: Sequence[StoreSample]) -> None:
    """Append the samples. Blocks while another process writes. Raises `TidemarkError`.

    A last line without an end, which a full disk or a crash has left, gets one, so that it does not spoil the next line.
    """
    if not samples:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked_file(_lock_of(path)), path.open("a+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
            is_torn = file.read(1) not in (b"", b"\n")
            file.write((b"\n" if is_torn else b"") + _lines_of(samples).encode())
    except OSError as error:
        raise TidemarkError(
            f"failed to write the history {path}: {error.strerror}; set TIDEMARK_VAR_DIR to a writable folder"
        ) from error


def _lines_of(samples: Sequence[StoreSample]) -> str:
    return "".join(json.dumps(asdict(sample)) + "\n" for sample in samples)


def _lock_of(path: Path) -> Path:
    """Return the file whose lock a writer holds. Not the history itself, which is replaced."""
    return path.with_name(f"{path.name}.lock")


def read(path: Path) -> list[StoreSample]:
    """Read all samples, oldest first; [] if there is no history yet. A broken line is left out and logged."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    samples: list[StoreSample] = []
    for number, line in enumerate(lines, 1):
        try:
            samples.append(parse_line(line, path, number))
        except TidemarkError as error:
            log.warning("a sample is left out: %s", error)
    return samples


def drop_before(path: Path, before_ms: int) -> None:
    """Remove the samples that are older than `before_ms`, and broken lines. Blocks. Raises `OSError`."""
    with locked_file(_lock_of(path)):
        kept = [sample for sample in read(path) if sample.time_ms >= before_ms]
        replace_file(path, _lines_of(kept), synced=False)


def parse_line(line: str, path: Path, number: int) -> StoreSample:
    """Return the sample in one line of a history. Raises `TidemarkError` naming the line if it is broken."""
    try:
        return StoreSample(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise TidemarkError(f"{path} line {number} is not a sample: delete that line") from error


def growth(samples: Sequence[StoreSample]) -> list[StoreGrowth]:
    """Compute the growth per copy of a store, sorted by task, store and holder."""
    copies: dict[tuple[str, str, str | None], list[StoreSample]] = {}
    for sample in sorted(samples, key=lambda each: each.time_ms):
        copies.setdefault((sample.task, sample.store, sample.holder), []).append(sample)
    return [
        StoreGrowth(
            *copy,
            samples=len(seen),
            hours=(seen[-1].time_ms - seen[0].time_ms) / _HOUR_MS,
            keys=_per_hour([(s.time_ms, s.keys) for s in seen]),
            bytes_disk=_per_hour([(s.time_ms, s.bytes_disk) for s in seen]),
            offsets_topic=_per_hour([(s.time_ms, s.offsets_topic) for s in seen]),
            bytes_topic=_per_hour([(s.time_ms, s.bytes_topic) for s in seen]),
        )
        for copy, seen in sorted(copies.items(), key=lambda each: _order(*each[0]))
    ]


def _order(task: str, store: str, holder: str | None) -> tuple[list[int], str, str]:
    return [int(part) for part in task.split("_")], store, holder or ""


def _per_hour(values: Sequence[tuple[int, int | None]]) -> float | None:
    known = [(time_ms, value) for time_ms, value in values if value is not None]
    if not known or known[-1][0] == known[0][0]:
        return None
    (first_ms, first), (last_ms, last) = known[0], known[-1]
    return (last - first) * _HOUR_MS / (last_ms - first_ms)

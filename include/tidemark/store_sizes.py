"""Keys and bytes of each task's stores, on this machine's disk and in the changelog topic.

Stores are read while their instance runs: RocksDB's lock stays with its owner. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocksdict import AccessType, Options, Rdict
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from tidemark.errors import TidemarkError
from tidemark.folder_lock import is_locked
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.tools import kafka_tool
from tidemark.names import TaskId, TopicPartition
from tidemark.settings import Settings
from tidemark.stores.directory import STANDBY_PREFIX, STORES_FOLDER
from tidemark.stores.rocksdb import CHECKPOINT_KEY
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.tasks.task import changelog_of
from tidemark.topology.plan import StoreSpec, TopologyPlan

_ESTIMATE = "rocksdb.estimate-num-keys"
_TRIES = 3

CountKeys = Callable[[Path], int]


@dataclass(frozen=True)
class KnownSizes:
    """A number, or the reason why it is unknown: a few words, optionally followed by a colon and a remedy."""

    value: int | None
    why: str = ""

    def __str__(self) -> str:
        return self.why.partition(":")[0] if self.value is None else f"{self.value:,}"


@dataclass(frozen=True)
class StoreCopy:
    """One copy of one task's store on this machine.

    `holder` is the folder below `state_dir` that has the copy, None if there is no copy here. `keys` is RocksDB's estimate.
    `bytes_disk` counts every file in the store's folder. `is_old`: another instance here is known to have processed the
    task since. It is not known of a custom store, or beside a copy that cannot be read, unless an instance has the task open.
    """

    holder: str | None
    keys: KnownSizes
    bytes_disk: KnownSizes
    is_old: bool = False


@dataclass(frozen=True)
class StoreSize:
    """Sizes of one copy of one task's store; the first fields are those of `StoreCopy`.

    `offsets_topic` is end offset minus low offset: it also counts
    transaction markers and records that compaction has removed. `bytes_topic` is the size of one replica.
    """

    task: TaskId
    store: str
    holder: str | None
    keys: KnownSizes
    bytes_disk: KnownSizes
    is_old: bool
    offsets_topic: KnownSizes
    bytes_topic: KnownSizes


@dataclass(frozen=True)
class TopicBytes:
    """Bytes by partition, as reported from the brokers' log folders. If they are unknown, `why` is the reason."""

    of: Mapping[TopicPartition, int]
    why: str = ""


def store_sizes(
    plan: TopologyPlan, partitions: Mapping[str, int], ends: EndOffsets, settings: Settings
) -> list[StoreSize]:
    """Measure every store of every task; the result is sorted. `partitions` is the cluster's partition count by topic.

    Blocks for two round trips and for Kafka's own tool (a second or two). Raises `OutcomeUnknown` when no broker answers.
    """
    app = plan.application_id
    topics = [changelog_of(app, spec) for s in plan.subtopologies for spec in s.stores if spec.is_logged]
    places = [TopicPartition(topic, p) for topic in topics for p in range(partitions.get(topic, 0))]
    low, end = ends.beginnings(places), ends.of(places)
    in_topic = topic_bytes(sorted({place.topic for place in places}), settings)
    found: list[StoreSize] = []
    for subtopology in plan.subtopologies:
        tasks = [TaskId(subtopology.index, p) for p in range(partitions.get(subtopology.lead.topic, 0))]
        for task in tasks:
            for spec in subtopology.stores:
                place = TopicPartition(changelog_of(app, spec), task.partition)
                offsets = KnownSizes(end[place] - low[place]) if place in end else KnownSizes(None, _no_topic(spec))
                size = KnownSizes(in_topic.of.get(place), in_topic.why or "not reported") if place in end else offsets
                for copy in copies_on_disk(settings.state_dir, app, task, spec):
                    found.append(
                        StoreSize(task, spec.name, copy.holder, copy.keys, copy.bytes_disk, copy.is_old, offsets, size)
                    )
    return sorted(found, key=lambda row: (row.task, row.store, row.holder or ""))


def _no_topic(spec: StoreSpec) -> str:
    return "no topic yet" if spec.is_logged else "not logged"


def copies_on_disk(state_dir: Path, application_id: str, task: TaskId, spec: StoreSpec) -> list[StoreCopy]:
    """Return each copy of a store here, sorted by holder; if there is none, one entry whose holder is None."""
    if spec.in_memory:
        return [StoreCopy(None, KnownSizes(None, "in memory"), KnownSizes(None, "in memory"))]
    folders = {
        folder.relative_to(state_dir).parts[0]: folder
        for folder in sorted(state_dir.glob(f"*/{application_id}/{task}/{STORES_FOLDER}/{spec.name}"))
    }
    old = _old_copies({h: folder for h, folder in folders.items() if not h.startswith(STANDBY_PREFIX)}, spec)
    found = [
        StoreCopy(
            holder,
            KnownSizes(None, "custom") if spec.custom is not None else estimated_keys(folder),
            KnownSizes(folder_bytes(folder)),
            is_old=holder in old,
        )
        for holder, folder in folders.items()
    ]
    return found or [StoreCopy(None, KnownSizes(None, "not here"), KnownSizes(None, "not here"))]


def _old_copies(folders: Mapping[str, Path], spec: StoreSpec) -> set[str]:
    """Return the instances whose copy is old: a task that moves leaves its folder, as a start there continues from it.

    `folders` are the store's, by instance. If nobody has the task open, the copies' batches decide; if one of these is not
    known, no copy is called old.
    """
    if len(folders) < 2:
        return set()
    current = {holder for holder, folder in folders.items() if is_locked(folder.parents[1])} or set(folders)
    batches = {holder: _last_batch(folders[holder], spec) for holder in current}
    known = [batch for batch in batches.values() if batch is not None]
    if len(known) == len(batches):
        current = {holder for holder, batch in batches.items() if batch == max(known)}
    return folders.keys() - current


def _last_batch(folder: Path, spec: StoreSpec) -> int | None:
    """Return the batch of a store's checkpoint, -1 if it has none yet; None for a custom store or one that cannot be read."""
    if spec.custom is not None:
        return None
    try:
        _, checkpoint = segments_on_disk(folder)
    except TidemarkError:
        return None
    return -1 if checkpoint is None else checkpoint.batch


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder. A file that a running instance deletes meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@contextmanager
def _looked_into(folder: Path) -> Iterator[tuple[Rdict, list[str]]]:
    """Open a store, which its owner may be changing, and yield it with its segments' families. Raises `TidemarkError`."""
    options = Options(raw_mode=True)
    try:
        families = dict.fromkeys(Rdict.list_cf(str(folder), options), options)
        opened = Rdict(str(folder), options, families, access_type=AccessType.read_only(False))
        try:
            # The default family holds only the checkpoint.
            yield opened, [name for name in families if name != "default"]
        finally:
            opened.close()
    except Exception as error:
        raise TidemarkError(f"failed to read the store in {folder}: {error}") from error


def _count_keys(folder: Path) -> int:
    with _looked_into(folder) as (opened, families):
        return sum(opened.get_column_family(name).property_int_value(_ESTIMATE) or 0 for name in families)


# The owner may compact, or drop a segment, between the listing and the opening.
_read_again = retry(retry=retry_if_exception_type(TidemarkError), stop=stop_after_attempt(_TRIES), reraise=True)


@_read_again
def segments_on_disk(folder: Path) -> tuple[list[int], StoreCheckpoint | None]:
    """Return the numbers of a store's segments, ascending, and its checkpoint. Raises `TidemarkError` if it cannot be read."""
    with _looked_into(folder) as (opened, families):
        stored = opened.get(CHECKPOINT_KEY)
        checkpoint = StoreCheckpoint.from_bytes(stored) if isinstance(stored, bytes) else None
        return sorted(int(name.partition("-")[2]) for name in families), checkpoint


def estimated_keys(folder: Path, count: CountKeys = _count_keys) -> KnownSizes:
    """Return RocksDB's estimate of a store's keys, write-ahead log included. Keys written or deleted twice distort it."""
    try:
        return KnownSizes(_read_again(count)(folder))
    except TidemarkError:
        return KnownSizes(None, "unreadable")


def topic_bytes(topics: Sequence[str], settings: Settings) -> TopicBytes:
    """Return the bytes of every partition of the topics, measured by Kafka's `kafka-log-dirs`.

    No client of librdkafka can ask for them (see invariant: what clients cannot see).
    """
    if not topics:
        return TopicBytes({})
    try:
        code, said = kafka_tool(
            "log-dirs", "--describe", "--topic-list", ",".join(topics), settings=settings, capture=True
        )
    except (TidemarkError, OSError) as error:
        return TopicBytes({}, f"no kafka-log-dirs: {error}")
    if code != 0:
        return TopicBytes({}, f"no kafka-log-dirs: it ended with exit code {code}, its error is above")
    return parse_log_dirs(said)


def parse_log_dirs(said: str) -> TopicBytes:
    """Parse the output of `kafka-log-dirs --describe`. The largest replica counts; one that is being moved in does not."""
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if not lines:
        return TopicBytes({}, "no kafka-log-dirs: it printed no sizes")
    found: dict[TopicPartition, int] = {}
    for broker in json.loads(lines[-1])["brokers"]:
        for folder in broker["logDirs"]:
            for replica in folder["partitions"]:
                topic, _, number = replica["partition"].rpartition("-")
                place = TopicPartition(topic, int(number))
                if not replica["isFuture"]:
                    found[place] = max(found.get(place, 0), int(replica["size"]))
    return TopicBytes(found)

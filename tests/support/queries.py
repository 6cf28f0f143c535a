"""Stores of every kind in memory, filled by hand, and a process that holds them: what queries are tested on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.standby import count

from tidemark.kafka.partitioner import partitions_of
from tidemark.names import TaskId
from tidemark.queries.errors import StateUnavailable
from tidemark.queries.hosts import CopyState, OpenStore, StoreRestore
from tidemark.queries.position import ChangelogOffset, Position, TaskRole
from tidemark.queries.server_events import ServerEvent
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.store_checkpoint import StoreCheckpoint
from tidemark.topology.builder import Topology
from tidemark.topology.plan import StoreKind, TopologyPlan
from tidemark.topology.stores import Materialized
from tidemark.topology.windows import session, tumbling

TASKS = 3
ALL_TASKS = [TaskId(0, number) for number in range(TASKS)]
SEGMENT_MS = 300_000
APP = "app"


def queried_plan(application_id: str = APP) -> TopologyPlan:
    """The stores `n` (key-value), `w` (windows of a minute), `s` (sessions) and `secret`, which is private."""
    topology = Topology(application_id, version="7")
    stream = topology.stream("in", schema="id STRING, at BIGINT", key="id", timestamp="at").group_by_key()
    stream.count(name="n", store="n").to("out")
    stream.windowed_by(tumbling("60s")).count(name="n", store="w", retention="10m").to("out-w")
    stream.windowed_by(session("30s")).count(name="n", store="s", retention="10m").to("out-s")
    stream.count(name="n", store=Materialized("secret", private=True)).to("out-secret")
    return topology.plan()


def table_plan(optimised: bool = False) -> TopologyPlan:
    """The table `t` of rows."""
    topology = Topology(APP, optimised=optimised)
    topology.table("users", schema="city STRING, age DOUBLE", store="t")
    return topology.plan()


def time_bytes(*times_ms: int) -> bytes:
    return b"".join(at.to_bytes(8, "big") for at in times_ms)


def stored_key(kind: StoreKind, key: bytes, start_ms: int = 0, end_ms: int = 0) -> tuple[int, bytes]:
    """The segment and the stored key, as the operators make them."""
    if kind is StoreKind.KEY_VALUE:
        return WHOLE, key
    if kind is StoreKind.WINDOW:
        return start_ms // SEGMENT_MS, key + time_bytes(start_ms)
    return end_ms // SEGMENT_MS, key + time_bytes(end_ms, start_ms)


def fill(store: MemoryStore, items: Mapping[tuple[int, bytes], bytes], batch: int = 1) -> MemoryStore:
    """Put items by segment and stored key."""
    checkpoint = StoreCheckpoint(APP, "7", "n", "", batch, 0, {}, 5_000, 10 * batch)
    writes = [Writes(segment, [key], [value]) for (segment, key), value in items.items()]
    store.put_many(writes, checkpoint, None)
    return store


@dataclass
class HeldTasks:
    """A `StoreHost` of stores in memory. `lag` is that of every copy; a standby has one."""

    name: str = "0"
    state: CopyState = CopyState.ACTIVE
    held: dict[TaskId, dict[str, MemoryStore]] = field(default_factory=dict)
    lag: int = 0
    restoring: list[StoreRestore] = field(default_factory=list)

    @property
    def holder(self) -> str:
        return self.name

    def copies(self) -> Mapping[TaskId, CopyState]:
        return dict.fromkeys(self.held, self.state)

    def state_of(self, task: TaskId) -> CopyState | None:
        return self.copies().get(task)

    def restores(self) -> list[StoreRestore]:
        return self.restoring

    def open(self, task: TaskId, store: str) -> OpenStore:
        if task not in self.held:
            raise StateUnavailable(f"{self.name} does not hold task {task}", "ask again")
        snapshot = self.held[task][store].snapshot()
        offset = snapshot.checkpoint.changelog_offset if snapshot.checkpoint else 0
        batch = snapshot.checkpoint.batch if snapshot.checkpoint else -1
        is_active = self.state is CopyState.ACTIVE
        return OpenStore(
            snapshot,
            Position(
                task, TaskRole.ACTIVE if is_active else TaskRole.STANDBY, self.name, "7", offset, offset, offset + self.lag,
                self.lag, self.lag * 10, 5_000, batch if is_active else None, 0,
            ),
        )  # fmt: skip


def counts_host(counts: Mapping[bytes, int], tasks: int = TASKS, **more) -> HeldTasks:
    """A host of the store `n` with these counts, each in the task of its key; other stores are empty."""
    held = {TaskId(0, number): {name: MemoryStore() for name in "nws"} for number in range(tasks)}
    for key, number in zip(counts, partitions_of(list(counts), tasks).tolist() if counts else [], strict=True):
        fill(held[TaskId(0, number)]["n"], {(WHOLE, key): count(counts[key])})
    return HeldTasks(held=held, **more)


@dataclass
class ScriptedChanges:
    """A `ChangeSource` whose watches send the parts of a script, one script after the other; `asked` is what was asked for."""

    scripts: list[list[bytes]] = field(default_factory=list)
    asked: list[tuple[str, list[TaskId], bytes | None, dict[TaskId, ChangelogOffset]]] = field(default_factory=list)
    closed: int = 0

    def watch(self, store, tasks, key, after) -> ScriptedParts:
        self.asked.append((store.spec.name, list(tasks), key, dict(after)))
        return ScriptedParts(self, self.scripts.pop(0) if self.scripts else [])


@dataclass
class ScriptedParts:
    """A `PartSource` that sends its script and ends."""

    made_by: ScriptedChanges
    script: list[bytes]

    @property
    def keep_alive(self) -> bytes:
        return b": still here\n\n"

    def read(self) -> bytes | None:
        return self.script.pop(0) if self.script else None

    def last_part(self, kind: str, why: str) -> bytes | None:
        return ServerEvent(kind, json.dumps({"why": why})).to_bytes()

    def close(self) -> None:
        self.made_by.closed += 1


def body_of(answer) -> dict:
    """The JSON of an answer that succeeded."""
    assert answer.status_code == 200, answer.text
    return json.loads(answer.content)

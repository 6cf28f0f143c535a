"""Any process answers any query: from its own task, else from the owner's, else from a standby's copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import pyarrow as pa

from tidemark.kafka.partitioner import partition_of, partitions_of
from tidemark.names import TaskId
from tidemark.queries.answer_form import Results
from tidemark.queries.catalog import Catalog, QueryableStore
from tidemark.queries.cursor import Cursor
from tidemark.queries.endpoints import Endpoint, has_distant_standby
from tidemark.queries.errors import (
    PositionGone,
    QueryInvalid,
    QueryRefused,
    QueryTimedOut,
    StateUnavailable,
    TooManyRequests,
)
from tidemark.queries.export import PeerExport, TaskExport
from tidemark.queries.hosts import CopyState, StoreHost, restore_progress
from tidemark.queries.part_source import PartSource
from tidemark.queries.peers import LAUNCH, Peers
from tidemark.queries.position import Position, ReadBounds
from tidemark.queries.query import KeyQuery, ScanQuery, require_fitting
from tidemark.queries.store_reader import PAGE_BYTES, Deadline
from tidemark.queries.task_read import CountQuery, TaskAnswer, TaskRead, read_task
from tidemark.stores.directory import STANDBY_PREFIX

T = TypeVar("T")

_KEPT_S = 1.0
"""The seconds of a query that are kept for other holders, or half of what is left if that is less."""
_LEAST_S = 0.02
"""With less time than this, another process is not asked at all."""
_ASKED_AT_ONCE = 16
"""The number of processes that are asked at the same time where their copies are."""
_FEW_BYTES = 4_096
"""Keys of so many bytes are hashed in the event loop, for which more would take too long."""
_ORDER = {CopyState.ACTIVE: 0, CopyState.STANDBY: 1, CopyState.RESTORING: 2}


@dataclass(frozen=True)
class Answer:
    """The answer of one or several tasks. `cursor` is where the next page begins; None at the end."""

    results: Sequence[Results]
    positions: list[Position]
    cursor: Cursor | None = None
    count: int = 0

    @property
    def table(self) -> pa.Table:
        """All results as a table."""
        return pa.concat_tables([each.table() for each in self.results])

    def rows(self) -> list[dict[str, Any]]:
        """Return all results as `to_pylist` of the table does."""
        return [row for each in self.results for row in each.rows()]


@dataclass(frozen=True)
class Request:
    """What is the same in all reads of one query of a caller.

    If `is_passed_on`, another process has chosen this one to answer, and nobody else is asked. `refusals` are what holders have
    already said to this query, by their names.
    """

    bounds: ReadBounds
    deadline: Deadline
    authorization: str
    task: TaskId | None = None
    is_passed_on: bool = False
    refusals: Mapping[str, QueryRefused] = field(default_factory=dict)


@dataclass(frozen=True)
class PassedTo:
    """The process that a query of one task is passed on to, and the seconds that it has for its answer."""

    task: TaskId
    endpoint: Endpoint
    answer_s: float


@dataclass(frozen=True)
class _CopyAnswer:
    """The answer of a process about its copy of a task: the position, or the reason why there is none."""

    position: Position | None
    unavailable: str = ""
    was_asked: bool = True


@dataclass(frozen=True)
class Router:
    """`tasks` are all tasks of the application, `others` returns the announced endpoints of the other processes.

    `rack` and `launch` are those of this process.
    """

    catalog: Catalog
    tasks: Sequence[TaskId]
    host: StoreHost
    others: Callable[[], list[Endpoint]]
    peers: Peers
    rack: str = ""
    launch: str = ""

    def keys(self, store: QueryableStore, keys: Sequence[bytes], request: Request) -> Answer:
        """Return the values of keys, in no particular order, each from the task that owns it. Blocks."""
        require_fitting(store, KeyQuery(()))
        owned = self._owners(store, keys, request)
        answers = [
            self._ask(store, task, TaskRead(KeyQuery(tuple(mine)), request.bounds), request)
            for task, mine in owned.items()
        ]
        return _joined(store, answers)

    def scan(
        self, store: QueryableStore, query: ScanQuery, cursor: Cursor | None, limit: int, request: Request
    ) -> Answer:
        """Return a page of results: task after task, in each by segment and stored key. Blocks."""
        require_fitting(store, query)
        key = getattr(query, "key", None)
        tasks = self._tasks_of(store, request) if key is None else list(self._owners(store, [key], request))
        contents = (sum(t.subtopology == store.subtopology.index for t in self.tasks), store.spec.generation)
        at = cursor or Cursor(tasks[0], None, *contents)
        at.require_contents(*contents)
        if at.task not in tasks:
            raise QueryInvalid(
                f"the cursor is of task {at.task}, which this query does not read", "begin without a cursor"
            )
        answers: list[TaskAnswer] = []
        left, left_bytes = limit, PAGE_BYTES
        for place, task in list(enumerate(tasks))[tasks.index(at.task) :]:
            after = at.after if task == at.task else None
            answer = self._ask(store, task, TaskRead(query, request.bounds, after, left), request)
            answers.append(answer)
            left -= len(answer.results)
            left_bytes -= answer.results.size_bytes
            if answer.last is not None:
                return _joined(store, answers, Cursor(task, answer.last, *contents))
            is_full = left == 0 or left_bytes <= 0
            if (is_full or request.deadline.is_nearly_over()) and place + 1 < len(tasks):
                return _joined(store, answers, Cursor(tasks[place + 1], None, *contents))
        return _joined(store, answers)

    def count(self, store: QueryableStore, is_approximate: bool, request: Request) -> Answer:
        """Return the number of keys, windows or sessions in all tasks. Blocks."""
        asked = TaskRead(CountQuery(is_approximate), request.bounds)
        return _joined(store, [self._ask(store, t, asked, request) for t in self._tasks_of(store, request)])

    def local(self, store: QueryableStore, task: TaskId, asked: TaskRead, deadline: Deadline) -> TaskAnswer:
        """Answer for another process from what this one holds, and ask nobody. Blocks."""
        self.require_task(store, task)
        if not isinstance(asked.query, CountQuery):
            require_fitting(store, asked.query)
        return read_task(self.host, task, store, asked, deadline)

    def require_task(self, store: QueryableStore, task: TaskId) -> TaskId:
        """Return the task. Raises `QueryInvalid` if the store has no such task."""
        known = [each for each in self.tasks if each.subtopology == store.subtopology.index]
        if task not in known:
            raise QueryInvalid(
                f"store {store.spec.name} has no task {task}", f"its tasks are {known[0]} to {known[-1]}"
            )
        return task

    def other_holder(self, store: QueryableStore, keys: Sequence[bytes] | None, request: Request) -> PassedTo | None:
        """Return the task and the process that a query is passed on to; None if it is not one task of another process.

        `keys` are those that are asked for, None for all. Reads nothing.
        """
        if request.is_passed_on or (keys is not None and sum(map(len, keys)) > _FEW_BYTES):
            return None
        tasks = self._tasks_of(store, request) if keys is None else [*self._owners(store, keys, request)]
        holders = self._holders(tasks[0]) if len(tasks) == 1 else []
        if not holders or not holders[0].url or not self._may_answer(store, tasks[0], holders[0]):
            return None
        return PassedTo(tasks[0], holders[0], self._answer_s(store, tasks[0], holders[1:], request))

    def metadata(self, store: QueryableStore, key: bytes | None, request: Request) -> list[dict[str, Any]]:
        """Return which processes hold the tasks of a store, or of one key, with their positions. Blocks.

        As Kafka Streams' `queryMetadataForKey` and `streamsMetadataForStore`.
        """
        tasks = self._tasks_of(store, request) if key is None else list(self._owners(store, [key], request))
        holders = {task: self._holders(task) for task in tasks}
        by_url: dict[str, list[tuple[TaskId, Endpoint]]] = {}
        for task, of_task in holders.items():
            for endpoint in of_task:
                by_url.setdefault(endpoint.url, []).append((task, endpoint))
        said: dict[tuple[TaskId, str], _CopyAnswer] = {}
        if by_url:
            # One that stands still must not take the time of the others.
            with ThreadPoolExecutor(min(len(by_url), _ASKED_AT_ONCE), "query-metadata") as pool:
                for answers in pool.map(lambda copies: self._ask_about(store, copies, request), by_url.values()):
                    said |= answers
        return [_described(task, of_task, said) for task, of_task in holders.items()]

    def _ask_about(
        self, store: QueryableStore, copies: Sequence[tuple[TaskId, Endpoint]], request: Request
    ) -> dict[tuple[TaskId, str], _CopyAnswer]:
        """Ask one process about its copies of several tasks."""
        asked = TaskRead(CountQuery(is_approximate=True), ReadBounds())
        found = {}
        for task, endpoint in copies:
            answer_s = min(request.deadline.remaining_s, _KEPT_S)
            try:
                if endpoint.url and self.peers.is_silent(endpoint.url):
                    # Each task of a lost machine would take the time of a connection otherwise.
                    raise StateUnavailable(f"{endpoint.url} did not answer a moment ago", "ask again")
                position = self._read(endpoint, store, task, asked, request, answer_s).position
                found[task, endpoint.holder] = _CopyAnswer(position)
            except QueryRefused as refused:
                was_asked = not endpoint.url or answer_s >= _LEAST_S
                found[task, endpoint.holder] = _CopyAnswer(None, refused.detail, was_asked)
        return found

    def _owners(self, store: QueryableStore, keys: Sequence[bytes], request: Request) -> dict[TaskId, list[bytes]]:
        """Return the keys by the task that owns them; by every task if the store's keys do not say."""
        if request.task is not None or not store.is_by_key:
            return {task: list(keys) for task in self._tasks_of(store, request)}
        of_store = self._tasks_of(store, request)
        found: dict[TaskId, list[bytes]] = {}
        partitions = (
            [partition_of(keys[0], len(of_store))] if len(keys) == 1 else partitions_of(keys, len(of_store)).tolist()
        )
        for key, partition in zip(keys, partitions, strict=True):
            found.setdefault(of_store[partition], []).append(key)
        return found

    def _require_bounds_of(self, store: QueryableStore, bounds: ReadBounds) -> None:
        """Raise `QueryInvalid` for bounds of a task that the store does not have, which no answer could fulfil or violate.

        Raises `PositionGone` if the store may have had that task, in an earlier generation of its changelog.
        """
        for task in (*bounds.least_offsets, *bounds.least_batches):
            if task in self.tasks and task.subtopology == store.subtopology.index:
                continue
            least = bounds.least_offsets.get(task)
            what = f"at_least names task {task}, which store {store.spec.name} does not have"
            if least is not None and least.generation < store.spec.generation:
                raise PositionGone(what, "ask without at_least once, and pass the position of that answer from then on")
            raise QueryInvalid(what, "pass the position of an earlier answer of the same store")

    def _tasks_of(self, store: QueryableStore, request: Request) -> list[TaskId]:
        self._require_bounds_of(store, request.bounds)
        if request.task is not None:
            self.require_task(store, request.task)
            return [request.task]
        return [task for task in self.tasks if task.subtopology == store.subtopology.index]

    def export(
        self, store: QueryableStore, task: TaskId, params: Mapping[str, str], wait_s: float, request: Request
    ) -> PartSource:
        """Return all contents of a task's store, of which one holder's copy is read. `params` are the caller's. Blocks."""
        self.require_task(store, task)
        self._require_bounds_of(store, request.bounds)

        def open_copy(endpoint: Endpoint, _: float) -> PartSource:
            if not endpoint.url:
                return TaskExport(self.host, task, store, request.bounds, request.deadline.timeout_ms)
            path = f"/v1/stores/{store.spec.name}/tasks/{task}/export"
            answer = self.peers.stream(endpoint.url, path, params, request.authorization, wait_s)
            if answer.is_success:
                try:
                    self.require_announced(endpoint, answer.headers.get(LAUNCH))
                except StateUnavailable:
                    answer.close()
                    raise
                return PeerExport(endpoint.holder, answer)
            refused = refusal(endpoint, answer.status_code, answer.content)
            if isinstance(refused, TooManyRequests):
                # It serves as many exports as it may, and another holder may serve fewer.
                refused = StateUnavailable(refused.detail, refused.remedy)
            raise refused

        return self._first(store, task, open_copy, request)

    def watched(self, store: QueryableStore, key: bytes | None, request: Request) -> list[TaskId]:
        """Return the tasks in which a key, or any key, of a store may change."""
        return self._tasks_of(store, request) if key is None else list(self._owners(store, [key], request))

    def _holders(self, task: TaskId) -> list[Endpoint]:
        """Return who holds a task: the active one first, this process before others, silent ones last."""
        found = [endpoint for endpoint in self.others() if task in endpoint.copies]
        own = self.host.state_of(task)
        if own is not None:
            restores = tuple(self.host.restores()) if own is CopyState.RESTORING else ()
            found.insert(0, Endpoint(self.host.holder, "", {task: own}, restores, self.rack))
        return sorted(found, key=lambda e: (bool(e.url) and self.peers.is_silent(e.url), _ORDER[e.copies[task]]))

    def _ask(self, store: QueryableStore, task: TaskId, asked: TaskRead, request: Request) -> TaskAnswer:
        """Return the first answer that is fresh enough."""
        if request.is_passed_on:
            return read_task(self.host, task, store, asked, request.deadline)

        def read(endpoint: Endpoint, answer_s: float) -> TaskAnswer:
            return self._read(endpoint, store, task, asked, request, answer_s)

        return self._first(store, task, read, request)

    def _first(self, store: QueryableStore, task: TaskId, ask: Callable[[Endpoint, float], T], request: Request) -> T:
        """Return what the first holder gives that can. Raises `StateUnavailable` with what each holder said.

        `ask` is also given the seconds for the answer.
        """
        reasons: list[str] = []
        holders = self._holders(task)
        for place, endpoint in enumerate(holders, 1):
            request.deadline.require("finding the task's state", "ask again, or raise TIDEMARK_QUERY_TIMEOUT_MS")
            if endpoint.url and not _holds(endpoint, task, store):
                progress = restore_progress(task, store.spec.name, endpoint.restores)
                reasons.append(f"{endpoint.holder} restores it ({progress})")
                continue
            try:
                refused = request.refusals.get(endpoint.holder)
                if refused is not None:
                    raise refused
                return ask(endpoint, self._answer_s(store, task, holders[place:], request))
            except StateUnavailable as unavailable:
                reasons.append(unavailable.detail)
        raise StateUnavailable(
            f"no process can answer for task {task} of store {store.spec.name}: "
            f"{'; '.join(reasons) or 'no running process has announced it'}",
            "ask again; or accept an older answer (max_lag_records, max_lag_ms, at_least); or start an instance or a standby",
        )

    def _answer_s(self, store: QueryableStore, task: TaskId, others: Sequence[Endpoint], request: Request) -> float:
        """Return the seconds for the answer of a process: a part of what is left is kept for `others` that may answer.

        Otherwise a process that listens and does not answer would use up the time of a standby.
        """
        left_s = request.deadline.remaining_s
        is_needed = any(self._may_answer(store, task, other) for other in others)
        return max(left_s / 2, left_s - _KEPT_S) if is_needed else left_s

    def _may_answer(self, store: QueryableStore, task: TaskId, holder: Endpoint) -> bool:
        """Return whether a holder has the whole store of a task and was not silent a moment ago."""
        is_silent = bool(holder.url) and self.peers.is_silent(holder.url)
        return _holds(holder, task, store) and not is_silent

    def require_announced(self, endpoint: Endpoint, launch: str | None) -> None:
        """Raise `StateUnavailable` unless an answer with this launch is of the process that has announced the endpoint.

        Another process may have got the port of one that was killed.
        """
        if launch == endpoint.launch:
            return
        also = ""
        if launch is None:
            # If another process of this application has the address, that one must not be called silent.
            self.peers.note_silent(endpoint.url)
            also = ", or one of an earlier version of Tidemark: run the same version everywhere"
        raise StateUnavailable(
            f"another process than {endpoint.holder} answers at {endpoint.url} now{also}", "ask again"
        )

    def _read(
        self,
        endpoint: Endpoint,
        store: QueryableStore,
        task: TaskId,
        asked: TaskRead,
        request: Request,
        answer_s: float,
    ) -> TaskAnswer:
        if not endpoint.url:
            return read_task(self.host, task, store, asked, request.deadline)
        if answer_s < _LEAST_S:
            raise StateUnavailable(f"there was no time left to ask {endpoint.holder}", "ask again")
        path = f"/v1/stores/{store.spec.name}/tasks/{task}"
        answer = self.peers.post(endpoint.url, path, asked.to_dict(), request.authorization, answer_s)
        if answer.status_code == httpx.codes.OK:
            self.require_announced(endpoint, answer.headers.get(LAUNCH))
            try:
                return TaskAnswer.from_arrow(answer.content)
            except (ValueError, LookupError, TypeError, OSError) as error:
                self.peers.note_silent(endpoint.url)
                raise StateUnavailable(
                    f"the answer of {endpoint.holder} at {endpoint.url} cannot be read ({type(error).__name__})",
                    "run the same version of Tidemark everywhere",
                ) from error
        raise refusal(endpoint, answer.status_code, answer.content)


def _described(
    task: TaskId, holders: Sequence[Endpoint], said: Mapping[tuple[TaskId, str], _CopyAnswer]
) -> dict[str, Any]:
    """Return what `/v1/metadata` says of a task."""
    copies, answering, unasked = [], [], []
    for endpoint in holders:
        found: dict[str, Any] = {"holder": endpoint.holder, "url": endpoint.url, "state": endpoint.copies[task]}
        found["rack"] = endpoint.rack
        answer = said[task, endpoint.holder]
        if answer.position is not None:
            found["position"] = answer.position.to_dict()
            answering.append(endpoint)
        else:
            found["unavailable"] = answer.unavailable
        if not answer.was_asked:
            unasked.append(endpoint)
        copies.append(found)
    is_distant = has_distant_standby(task, holders, answering, unasked)
    return {"task": str(task), "standby_in_other_rack": is_distant, "copies": copies}


def _holds(holder: Endpoint, task: TaskId, store: QueryableStore) -> bool:
    """Return whether a process has announced the whole of a task's store.

    An instance that restores a task has none of its stores yet. A standby follows each store for itself.
    """
    if holder.copies[task] is not CopyState.RESTORING:
        return True
    is_building = any(r.store == store.spec.name and r.partition == task.partition for r in holder.restores)
    return holder.holder.startswith(STANDBY_PREFIX) and not is_building


def refusal(endpoint: Endpoint, status: int, body: bytes) -> QueryRefused:
    """Return what another process said. It ends the query if another holder must not be asked instead."""
    try:
        said: Mapping[str, Any] = json.loads(body)
        detail, remedy = f"{endpoint.holder}: {said['detail']}", str(said["remedy"])
        for final in (PositionGone, QueryInvalid, TooManyRequests, QueryTimedOut):
            if status == final.status:
                return final(detail, remedy)
    except (ValueError, LookupError, TypeError):
        detail = f"{endpoint.holder} at {endpoint.url} answered with HTTP {status}"
    return StateUnavailable(detail, "ask again")


def _joined(store: QueryableStore, answers: Sequence[TaskAnswer], cursor: Cursor | None = None) -> Answer:
    return Answer(
        [answer.results for answer in answers] or [store.results([])],
        [answer.position for answer in answers],
        cursor,
        sum(answer.count or 0 for answer in answers),
    )

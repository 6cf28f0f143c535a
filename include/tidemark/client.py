"""The Python client of interactive queries: reads the stores of a running application from any process that answers.

    with StateClient("shopping") as client:
        totals = client.store("purchase-totals", max_lag_ms=1_000)
        print(totals.get("customer-7"))
        frame = totals.range(prefix="customer-").to_pandas()

Every method blocks, and raises `QueryFailed` with what the process answered; `QueryUnavailable` if the same query may succeed
later. A client may be used by several threads.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa

from tidemark.clock import wall_clock_ms
from tidemark.errors import ExitCode, TidemarkError
from tidemark.queries.access import read_token_file, token_file
from tidemark.queries.answer_form import (
    ARROW_STREAM,
    HEX,
    KEY,
    META,
    VALUE,
    WINDOW_END,
    WINDOW_START,
    json_entry,
    read_arrow_stream,
)
from tidemark.queries.peers import APPLICATION
from tidemark.queries.position import Position, position_token
from tidemark.queries.server_events import CHANGE, END, GONE, LOST, POSITION, SLOW, ServerEvent, parse_events
from tidemark.queries.tls import trusted
from tidemark.settings import Settings
from tidemark.supervision.instance_files import known_instances, known_standbys
from tidemark.supervision.run_file import QUERY_URL, RunView

if TYPE_CHECKING:
    import pandas as pd


AUTHORIZATION, LAST_EVENT_ID = "Authorization", "Last-Event-ID"
_HEADERS = {
    AUTHORIZATION: "the token",
    APPLICATION: "the id of the application",
    LAST_EVENT_ID: "the id of the event to continue after",
}
_SILENCE_S = 20.0
"""A stream without even a comment for this long is lost."""
_RETRY_S = 0.5


class QueryFailed(TidemarkError):
    """A query was not answered. The message has the reason and what to do."""

    exit_code = ExitCode.FAILED


class QueryUnavailable(QueryFailed):
    """Nobody can answer at present. The same query may succeed later."""

    exit_code = ExitCode.RETRY


@dataclass(frozen=True)
class Entry:
    """One result: a key, its value by column, and the times of its window or session in epoch milliseconds."""

    key: bytes
    value: Mapping[str, Any]
    window_start_ms: int | None = None
    window_end_ms: int | None = None

    @property
    def text(self) -> str:
        """The key as text. Raises `UnicodeDecodeError` for a key that is not UTF-8."""
        return self.key.decode()


@dataclass(frozen=True)
class Result:
    """The results of a query as an Arrow table of `key`, the times of windows, and the structure `value`.

    `positions` has the position of each task that was read; of a task that was read on several pages, the newest, and
    `resume_position` the oldest, from which a watch misses no change. Pages may be of different copies. If not `is_complete`,
    there are more results than the limit of the query.
    """

    table: pa.Table
    positions: tuple[Position, ...]
    resume_position: str
    is_complete: bool = True

    @property
    def position(self) -> str:
        """Return the value for `at_least` of a later query, which then never reads an older state."""
        return position_token(self.positions)

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    def __iter__(self) -> Iterator[Entry]:
        for row in self.table.to_pylist():
            yield Entry(row[KEY], row[VALUE], row.get(WINDOW_START), row.get(WINDOW_END))

    def to_pandas(self) -> pd.DataFrame:
        """Return a frame with one column per field of the value. `key` is text if all keys are UTF-8, else bytes.

        Whole numbers and booleans have the types of pandas in which values may be missing (`Int64`, `boolean`), so that none is
        changed. A field that has the name of another column becomes `value.NAME`.
        """
        import pandas as pd

        nullable = {
            pa.int8(): pd.Int8Dtype(),
            pa.int16(): pd.Int16Dtype(),
            pa.int32(): pd.Int32Dtype(),
            pa.int64(): pd.Int64Dtype(),
            pa.bool_(): pd.BooleanDtype(),
        }
        # The second is for numbers inside of lists and structures.
        exact: dict[str, Any] = {"types_mapper": nullable.get, "integer_object_nulls": True}
        names = [name for name in self.table.column_names if name != VALUE]
        frame: pd.DataFrame = self.table.select(names).to_pandas(**exact)
        try:
            frame[KEY] = [key.decode() for key in frame[KEY]]
        except UnicodeDecodeError:
            frame[KEY] = list(frame[KEY])
        values = self.table.column(VALUE).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
        for field, column in zip(values.type, values.flatten(), strict=True):
            frame[f"{VALUE}.{field.name}" if field.name in names else field.name] = column.to_pandas(**exact)
        return frame

    def to_json(self) -> list[dict[str, Any]]:
        """Return the results as the JSON of the HTTP interface has them."""
        return [json_entry(row) for row in self.table.to_pylist()]


@dataclass(frozen=True)
class Count:
    """The number of keys, windows or sessions of a store."""

    count: int
    is_approximate: bool
    positions: tuple[Position, ...]

    @property
    def position(self) -> str:
        """Return the value for `at_least` of a later query."""
        return position_token(self.positions)


@dataclass(frozen=True)
class Change:
    """A committed change of a key; `value` is None if the key was deleted.

    `position` is that of the changed task, for `at_least`. A watch continues after this change from `resume_position`.
    """

    key: bytes
    value: Mapping[str, Any] | None
    window_start_ms: int | None
    window_end_ms: int | None
    position: str
    resume_position: str


@dataclass(frozen=True)
class InstanceEvent:
    """An event of an instance, as [events](events.md) describes its `kind` and `body`. `id` continues after it."""

    kind: str
    time_ms: int
    body: Mapping[str, Any]
    id: str


@dataclass(frozen=True)
class TaskContents:
    """Everything that a store holds in one task, at one position. `batches` can be read once."""

    position: Position
    approximate_count: int
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class StoreInfo:
    """A store that can be read. `kind` is `key-value`, `window` or `session`; `columns` are Arrow types by name."""

    name: str
    kind: str
    subtopology: int
    retention_ms: int | None
    columns: Mapping[str, str]


@dataclass(frozen=True)
class TaskCopy:
    """The copy of a task in one process. `url` is empty for the asked process; `unavailable` says why it is not read."""

    task: str
    holder: str
    url: str
    state: str
    position: Position | None
    unavailable: str | None


class StateClient:
    """Reads the stores of one application.

    Without `url` it asks a process of this machine, and finds the next one when that has been replaced. Without `token` it uses
    `query_token` of the settings, else that of this machine's processes.
    """

    def __init__(
        self,
        application_id: str,
        *,
        url: str | None = None,
        token: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.application_id = application_id
        self._url = url
        self._token = token
        self._settings = settings or Settings.load()
        # The process ends a query after its own time-out, and says so.
        timeout_s = 2 * self._settings.query_timeout_ms / 1000
        # A proxy of the environment would get the token, and cannot reach the loopback of this machine.
        self._http = httpx.Client(verify=trusted(self._settings), timeout=timeout_s, trust_env=False)

    def __enter__(self) -> StateClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._http.close()

    def stores(self) -> list[StoreInfo]:
        """Return the stores that the token may read."""
        return [StoreInfo(**each) for each in self._json("GET", "/v1/stores", {})["stores"]]

    def store(
        self,
        name: str,
        *,
        max_lag_records: int | None = None,
        max_lag_ms: int | None = None,
        at_least: str | None = None,
    ) -> StoreClient:
        """Return a reader of one store. Asks nothing yet.

        What it reads is within these bounds. They do not concern `watch`, which sends what is committed from its position
        on, nor `metadata`, `copies` and `tasks`, which show every copy.
        """
        bounds = {"max_lag_records": max_lag_records, "max_lag_ms": max_lag_ms, "at_least": at_least}
        return StoreClient(self, name, {key: value for key, value in bounds.items() if value is not None})

    def events(self, *, after: str | None = None) -> Iterator[InstanceEvent]:
        """Yield the events of the instance that is asked: those that it has kept, or those after the id `after`, then new ones.

        An event `lost`, without an id, says in its body how many `events` this client has missed. Ends when the instance
        ends, and raises `QueryUnavailable` when the connection is lost, or when the events were not read in time.
        """
        headers = {} if after is None else {LAST_EVENT_ID: after}
        with self._stream("/v1/events", {}, headers) as answer:
            for event in _server_events(answer):
                if event.kind == END:
                    return
                found = json.loads(event.data)
                if event.kind == SLOW:
                    raise QueryUnavailable(
                        f"the events were not read in time ({found['why']}): continue after the last one"
                    )
                if event.kind == LOST:
                    yield InstanceEvent(LOST, wall_clock_ms(), found, "")
                    continue
                yield InstanceEvent(found["kind"], found["time_ms"], found["body"], event.id or "")

    @contextmanager
    def _stream(
        self, path: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """Open an answer without a known end. Raises `QueryFailed`, also when it breaks off inside of the block."""
        at = self._address()
        given = {name: value for name, value in params.items() if value is not None}
        timeout = httpx.Timeout(self._http.timeout.connect, read=_SILENCE_S)
        try:
            with self._http.stream(
                "GET", f"{at}{path}", params=given, headers=self._headers(headers), timeout=timeout
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    raise refusal(answer)
                yield answer
        except httpx.InvalidURL as error:
            raise _unusable_url(at, given, error) from error
        except httpx.HTTPError as error:
            raise no_answer(at, error) from error

    @property
    def page_records(self) -> int:
        """The number of results that one request asks for at most."""
        return self._settings.query_page_records

    def _json(self, method: str, path: str, params: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._send(method, path, params)
        try:
            found: dict[str, Any] = answer.json()
        except ValueError as error:
            raise _unreadable(answer.url, error) from error
        return found

    def _table(self, path: str, params: Mapping[str, Any], body: Mapping[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
        answer = self._send("POST", path, params, body, {"Accept": ARROW_STREAM})
        try:
            return read_arrow_stream(answer.content)
        except (ValueError, LookupError, TypeError) as error:
            raise _unreadable(answer.url, error) from error

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any],
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        at = self._address()
        given = {name: value for name, value in params.items() if value is not None}
        try:
            answer = self._http.request(method, f"{at}{path}", params=given, json=body, headers=self._headers(headers))
        except httpx.InvalidURL as error:
            raise _unusable_url(at, given, error) from error
        except httpx.HTTPError as error:
            raise no_answer(at, error) from error
        if not answer.is_success:
            raise refusal(answer)
        return answer

    def _address(self) -> str:
        return (self._url or local_url(self._settings.var_dir, self.application_id)).rstrip("/")

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        """Return the headers of a request. Raises `QueryFailed`, without the value, if HTTP cannot carry one of them."""
        token = self._token or token_of(self._settings, self.application_id)
        headers = {AUTHORIZATION: f"Bearer {token}", APPLICATION: self.application_id, **(more or {})}
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                what = _HEADERS.get(name, f"the header {name}")
                raise QueryFailed(f"{what} has characters that HTTP cannot carry: use printable ASCII only")
        return headers


@dataclass(frozen=True)
class StoreClient:
    """Reads one store. Keys are text or bytes; times are epoch milliseconds. Made by `StateClient.store`."""

    client: StateClient
    name: str
    bounds: Mapping[str, Any]

    def get(self, key: str | bytes) -> Entry | None:
        """Return a key of a key-value store; None if it does not exist.

        Raises `QueryFailed` if several tasks hold the key, as may be in a processor's own store; `get_many` returns all values.
        """
        return self.only_entry(key, self.get_many([key]))

    def only_entry(self, key: str | bytes, found: Result) -> Entry | None:
        """Return the entry of a key in the result of `get_many`, as `get` does. Raises `QueryFailed`."""
        entries = list(found)
        if len(entries) > 1:
            raise QueryFailed(
                f"{len(entries)} tasks of store {self.name} hold key {key!r}: `get_many`, or `tidemark state keys`, returns "
                "all values"
            )
        return entries[0] if entries else None

    def get_many(self, keys: Sequence[str | bytes]) -> Result:
        """Return those keys of a key-value store that exist. The number of keys is limited by `query_page_records`."""
        return self._result([self._page("keys", {f"{KEY}s{HEX}": [_bytes(key).hex() for key in keys]})])

    def range(
        self,
        *,
        prefix: str | bytes | None = None,
        start: str | bytes | None = None,
        end: str | bytes | None = None,
        limit: int | None = None,
    ) -> Result:
        """Return the keys that begin with `prefix`, or those from `start` to before `end`, or all."""
        given = {"prefix": prefix, "start": start, "end": end}
        return self._scan(
            "range", {f"{n}{HEX}": _bytes(key).hex() for n, key in given.items() if key is not None}, limit
        )

    def windows(
        self,
        key: str | bytes | None = None,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        limit: int | None = None,
    ) -> Result:
        """Return the windows of a key, or of all keys, whose start is from `from_ms` to `to_ms`, both included."""
        return self._scan("windows", _times(key, from_ms, to_ms), limit)

    def sessions(
        self,
        key: str | bytes | None = None,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        limit: int | None = None,
    ) -> Result:
        """Return the sessions of a key, or of all keys, that have any time from `from_ms` to `to_ms`, both included."""
        return self._scan("sessions", _times(key, from_ms, to_ms), limit)

    def count(self, *, approximate: bool = False) -> Count:
        """Return the number of keys, windows or sessions: exactly, which reads all of them, or approximately."""
        found = self.client._json("GET", self._path("count"), {**self.bounds, "approximate": approximate})
        return Count(found["count"], found["is_approximate"], _positions(found))

    def copies(self, key: str | bytes | None = None) -> list[TaskCopy]:
        """Return which processes hold the task of a key, or all tasks of the store. A task that nobody holds has no copy."""
        found = self.metadata(key)
        return [
            TaskCopy(
                task["task"],
                copy["holder"],
                copy["url"],
                copy["state"],
                Position.from_dict(copy["position"]) if "position" in copy else None,
                copy.get("unavailable"),
            )
            for task in found["tasks"]
            for copy in task["copies"]
        ]

    def metadata(self, key: str | bytes | None = None) -> dict[str, Any]:
        """Return the answer of `/v1/metadata` as it is."""
        return self.client._json("GET", "/v1/metadata", {"store": self.name, **_of_key(key)})

    def watch(
        self, key: str | bytes | None = None, *, after: str | None = None, patience_s: float = 60.0
    ) -> Iterator[Change]:
        """Yield the changes of a key, or of all keys, each after its commit: those after a position, else from now on.

        Under at_least_once, a change may come before the offsets of its records are committed, and again after a failure.

        Never ends by itself. If the connection ends, it connects again, perhaps to another process, and continues at its
        position. Raises `QueryUnavailable` when it has received no change and no position for `patience_s`, and
        `QueryFailed` if the changelog no longer has the changes.
        """
        given = _of_key(key)
        at, heard_s = after, time.monotonic()
        while True:
            lost = QueryUnavailable(f"the watch of store {self.name} ends again and again: ask again later")
            try:
                with self.client._stream(self._path("watch"), {**given, "after": at}) as answer:
                    for event in _server_events(answer):
                        at = event.id or at
                        if event.kind in (CHANGE, POSITION):
                            heard_s = time.monotonic()
                        if event.kind == CHANGE:
                            yield _change(event)
                            # The caller's own time is no silence of the server.
                            heard_s = time.monotonic()
                        elif event.kind == GONE:
                            raise QueryFailed(
                                f"the watch has ended: {json.loads(event.data)['why']}: query the store again"
                            )
            except QueryUnavailable as error:
                lost = error
            if time.monotonic() - heard_s > patience_s:
                raise lost
            time.sleep(_RETRY_S)

    @contextmanager
    def contents(self, task: str) -> Iterator[TaskContents]:
        """Open everything that the store holds in one task, from one snapshot. Raises `QueryUnavailable` if it breaks off."""
        with self.client._stream(self._path("export"), {**self.bounds, "task": task}) as answer:
            reader = pa.ipc.open_stream(io.BufferedReader(_Body(answer.iter_bytes())))
            facts = json.loads(reader.schema.metadata[META])
            position = Position.from_dict(facts["position"])
            schema = reader.schema.remove_metadata()
            yield TaskContents(position, facts["approximate_count"], schema, _batches(reader, answer))

    def tasks(self) -> list[str]:
        """Return the tasks of the store."""
        return [task["task"] for task in self.metadata()["tasks"]]

    def _scan(self, route: str, given: dict[str, Any], limit: int | None) -> Result:
        """Follow the cursor until `limit` results were returned (None: all of them)."""
        pages: list[tuple[pa.Table, dict[str, Any]]] = []
        found, most = 0, self.client.page_records
        while True:
            left = most if limit is None else min(most, limit - found)
            table, facts = self._page(route, {**given, "limit": left})
            pages.append((table, facts))
            found += table.num_rows
            if facts["cursor"] is None or found == limit:
                return self._result(pages)
            given = {**given, "cursor": facts["cursor"]}

    def _page(self, route: str, body: Mapping[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
        return self.client._table(self._path(route), self.bounds, body)

    def _path(self, route: str) -> str:
        return f"/v1/stores/{self.name}/{route}"

    def _result(self, pages: Sequence[tuple[pa.Table, dict[str, Any]]]) -> Result:
        found: dict[str, list[Position]] = {}
        for _, facts in pages:
            for position in _positions(facts):
                found.setdefault(str(position.task), []).append(position)
        return Result(
            pa.concat_tables([table for table, _ in pages]),
            tuple(max(positions, key=_age) for positions in found.values()),
            position_token(min(positions, key=_age) for positions in found.values()),
            pages[-1][1]["cursor"] is None,
        )


class _Body(io.RawIOBase):
    """The body of an answer as a file that is read once."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._left = memoryview(part)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def local_url(var_dir: Path, application_id: str) -> str:
    """Return the address of a process of this machine that answers queries, an instance's if there is one.

    Raises `QueryUnavailable`.
    """
    for files in (*known_instances(var_dir, application_id), *known_standbys(var_dir, application_id)):
        run = RunView.read(files.run)
        if run is not None and run.is_running() and (url := run.values.get(QUERY_URL)):
            return str(url)
    raise QueryUnavailable(
        f"no instance and no standby of {application_id} answers queries on this machine: start one, or give the address of "
        "a process on another machine (`--url`, in Python `url=`; it is `query_url` in that process's run file)"
    )


def token_of(settings: Settings, application_id: str) -> str:
    """Return the token to ask with. Raises `InvalidSettings`, `QueryFailed`."""
    given = settings.query_token.get_secret_value()
    if given:
        return given
    path = token_file(settings.var_dir, application_id)
    if not path.exists():
        raise QueryFailed(
            f"there is no token to ask {application_id} with: set TIDEMARK_QUERY_TOKEN in the environment; {path}, which an "
            "instance makes, does not exist"
        )
    tokens = read_token_file(path)
    if not tokens:
        raise QueryFailed(
            f"there is no token to ask {application_id} with: {path} has none; add one, or set TIDEMARK_QUERY_TOKEN in the "
            "environment"
        )
    return next(iter(tokens))


def no_answer(url: str, error: Exception) -> QueryUnavailable:
    """Return the error for a process that cannot be reached, or that ends in the middle of its answer."""
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return QueryUnavailable(
        f"{url} does not answer ({what}): look whether that process still runs, with `tidemark status`"
    )


def _unusable_url(url: str, params: Mapping[str, Any], error: httpx.InvalidURL) -> QueryFailed:
    """Return the error for a request that no URL can carry. Asking again would not help."""
    key = params.get(f"{KEY}{HEX}")
    if key is None:
        return QueryFailed(f"{url} cannot be asked ({error}): give the address as http://HOST:PORT")
    return QueryFailed(
        f"{url} cannot be asked for a key of {len(key) // 2:,} bytes ({error}): its hexadecimal form must fit into the URL, as "
        "a key of 30,000 bytes does; `get_many` reads longer keys"
    )


def refusal(answer: httpx.Response) -> QueryFailed:
    """Return the error that a process answered."""
    kind = QueryUnavailable if answer.status_code in (429, 503, 504) else QueryFailed
    try:
        said = answer.json()
        return kind(f"{said['detail']}: {said['remedy']}")
    except (ValueError, LookupError, TypeError):
        return kind(f"{answer.url} answered with HTTP {answer.status_code}: look at the log of that process")


def _batches(reader: pa.ipc.RecordBatchReader, answer: httpx.Response) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a stream. Raises `QueryUnavailable` if it breaks off."""
    try:
        yield from reader
    except (httpx.HTTPError, pa.ArrowException, OSError) as error:
        raise no_answer(f"{answer.url}", error) from error


def _server_events(answer: httpx.Response) -> Iterator[ServerEvent]:
    return parse_events(answer.iter_lines())


def _change(event: ServerEvent) -> Change:
    found = json.loads(event.data)
    key = found[KEY].encode() if KEY in found else bytes.fromhex(found[f"{KEY}{HEX}"])
    return Change(
        key,
        found[VALUE],
        found.get(WINDOW_START),
        found.get(WINDOW_END),
        found["position"],
        event.id or found["position"],
    )


def _unreadable(url: httpx.URL, error: Exception) -> QueryFailed:
    return QueryFailed(
        f"the answer of {url} cannot be read ({type(error).__name__}): ask a process that runs this version of Tidemark"
    )


def _positions(facts: Mapping[str, Any]) -> tuple[Position, ...]:
    return tuple(map(Position.from_dict, facts["positions"]))


def _age(position: Position) -> tuple[int, int]:
    """Return what orders the positions of one task from old to new."""
    return position.generation, position.promised_offset


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _times(key: str | bytes | None, from_ms: int | None, to_ms: int | None) -> dict[str, Any]:
    times = {"from_ms": from_ms, "to_ms": to_ms}
    return {**_of_key(key), **{name: value for name, value in times.items() if value is not None}}


def _of_key(key: str | bytes | None) -> dict[str, str]:
    """Return the parameter that names a key; none for all keys."""
    return {} if key is None else {f"{KEY}{HEX}": _bytes(key).hex()}

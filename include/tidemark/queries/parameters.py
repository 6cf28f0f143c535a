"""The parameters of the routes that read stores: a model for those in the URL, and one for those in a body.

FastAPI describes the interface from these models, and each request is validated by them once (`read_route`).
"""

from pydantic import BaseModel, Field

from tidemark.names import TaskId
from tidemark.queries.answer_form import HEX
from tidemark.queries.errors import QueryInvalid
from tidemark.queries.position import ReadBounds
from tidemark.queries.query import MAX_TIME_MS, RangeQuery, ScanQuery, SessionQuery, WindowQuery


class AskedKeys(BaseModel):
    """Parameters that say which keys are asked for."""

    def asked_keys(self, most: int) -> list[bytes] | None:
        """Return the keys, of which there may be `most`; None: all keys. Raises `QueryInvalid`."""
        return None


class TaskParameters(AskedKeys):
    """The task to ask. Its state may be of any age."""

    task: str | None = Field(None, description="ask this task only, such as 0_1")

    def bounds(self) -> ReadBounds:
        """Return what the state must fulfil. Raises `QueryInvalid`."""
        return ReadBounds()

    def only_task(self) -> TaskId | None:
        """Return the task that is asked; None: each that may hold results. Raises `QueryInvalid`."""
        return None if self.task is None else parse_task(self.task)


class ReadParameters(TaskParameters):
    """Parameters of every read: how old the state may be, and which task is asked."""

    max_lag_records: int | None = Field(None, ge=0, description="maximum lag of the state in records")
    max_lag_ms: int | None = Field(None, ge=0, description="maximum lag of the state in milliseconds")
    at_least: str = Field("", description="position that the state must contain, from an earlier answer")

    def bounds(self) -> ReadBounds:
        return ReadBounds.of(self.max_lag_records, self.max_lag_ms, self.at_least)


class _OneKey(BaseModel):
    key: str | None = None
    key_hex: str | None = None

    def key_bytes(self) -> bytes | None:
        """Return the key; None if there is none. Raises `QueryInvalid`."""
        return _bytes("key", self.key, self.key_hex)


class KeyParameters(ReadParameters, _OneKey):
    """A key."""

    def required_key(self) -> bytes:
        """Return the key. Raises `QueryInvalid` if there is none."""
        key = self.key_bytes()
        if key is None:
            raise QueryInvalid("key is missing", f"pass key=TEXT or key{HEX}=BYTES; an empty key is key=")
        return key

    def asked_keys(self, most: int) -> list[bytes] | None:
        return [self.required_key()]


class MetadataParameters(TaskParameters, _OneKey):
    """A store, and a key or nothing for all tasks."""

    store: str


class WatchParameters(TaskParameters, _OneKey):
    """A key, or nothing for all keys, and where the watch begins."""

    after: str = Field("", description="position after which the watch begins; without it, now")


class CountParameters(ReadParameters):
    """Whether a count is exact or approximate."""

    approximate: bool = False


class KeysParameters(AskedKeys):
    """Keys as text, and keys in hexadecimal."""

    keys: list[str] = []
    keys_hex: list[str] = []

    def asked_keys(self, most: int) -> list[bytes]:
        """Return the keys, each once. Raises `QueryInvalid` if there are none, or more than `most`."""
        texts, hexes = self.keys, self.keys_hex
        if not 1 <= (number := len(texts) + len(hexes)) <= most:
            raise QueryInvalid(f"{number} keys are asked for", f"ask for 1 to {most} keys at once")
        found = [*(_bytes("keys", text, None) for text in texts), *(_bytes("keys", None, text) for text in hexes)]
        return list(dict.fromkeys(key for key in found if key is not None))


class ScanParameters(AskedKeys):
    """Parameters of every query with pages. `cursor` is that of the page before."""

    limit: int | None = Field(
        None, ge=1, description="maximum number of results; a page has at most `query_page_records`"
    )
    cursor: str | None = Field(None, description="cursor of the page before")

    def query(self) -> ScanQuery:
        """Return the query. Raises `QueryInvalid`."""
        raise NotImplementedError


class RangeParameters(ScanParameters):
    """A prefix, or a start and an end, or nothing for all keys. `_hex` is for keys that are not text."""

    prefix: str | None = None
    prefix_hex: str | None = None
    start: str | None = None
    start_hex: str | None = None
    end: str | None = None
    end_hex: str | None = None

    def query(self) -> ScanQuery:
        prefix = _bytes("prefix", self.prefix, self.prefix_hex)
        start, end = _bytes("start", self.start, self.start_hex), _bytes("end", self.end, self.end_hex)
        if prefix is None:
            return RangeQuery(start or b"", end)
        if start is not None or end is not None:
            raise QueryInvalid("a range has either a prefix, or a start and an end", "leave one of them out")
        return RangeQuery.of_prefix(prefix)


class _TimeParameters(_OneKey, ScanParameters):
    """A key, or nothing for all keys, and times in epoch milliseconds, both included."""

    from_ms: int = Field(0, ge=0, le=MAX_TIME_MS)
    to_ms: int = Field(MAX_TIME_MS, ge=0, le=MAX_TIME_MS)

    def asked_keys(self, most: int) -> list[bytes] | None:
        key = self.key_bytes()
        return None if key is None else [key]


class WindowParameters(_TimeParameters):
    """The times are those of a window's start."""

    def query(self) -> ScanQuery:
        return WindowQuery(self.key_bytes(), self.from_ms, self.to_ms)


class SessionParameters(_TimeParameters):
    """A session is found if it has any of these times."""

    def query(self) -> ScanQuery:
        return SessionQuery(self.key_bytes(), self.from_ms, self.to_ms)


class RangeInUrl(ReadParameters, RangeParameters):
    """All parameters of a range in the URL."""


class WindowsInUrl(ReadParameters, WindowParameters):
    """All parameters of windows in the URL."""


class SessionsInUrl(ReadParameters, SessionParameters):
    """All parameters of sessions in the URL."""


def parse_task(text: str) -> TaskId:
    """Return the task of this name. Raises `QueryInvalid`."""
    try:
        return TaskId.parse(text)
    except ValueError:
        raise QueryInvalid(f"{text!r} is not a task", "write subtopology and partition, such as 0_1") from None


def _bytes(name: str, text: str | None, hexadecimal: str | None) -> bytes | None:
    if text is not None and hexadecimal is not None:
        raise QueryInvalid(f"both {name} and {name}{HEX} are given", "leave one of them out")
    try:
        if hexadecimal is None:
            return None if text is None else text.encode()
        return bytes.fromhex(hexadecimal)
    except UnicodeEncodeError:
        raise QueryInvalid(f"{name} is not Unicode text", f"pass its bytes as {name}{HEX}") from None
    except ValueError:
        raise QueryInvalid(f"{name}{HEX} is not hexadecimal", "write two digits per byte, such as 00ff") from None

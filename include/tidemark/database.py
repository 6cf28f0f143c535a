"""The SQL database of a deployment. Its tables are on `METADATA`, and the scripts in `migrations` create them.

Several processes use it at once. It is a history of what happened; no stream depends on it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    CompoundSelect,
    Connection,
    Delete,
    Engine,
    Integer,
    MetaData,
    Row,
    Select,
    Table,
    create_engine,
    event,
    func,
    select,
    union,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from tidemark.errors import FactsUnavailable, InvalidSettings
from tidemark.migrations.version import is_newest
from tidemark.settings import Settings

METADATA = MetaData()

_BUSY_TIMEOUT_S = 10
_BUSY_PAUSE_S = 0.02
_PRIMARY_CODE = 0xFF
_CONNECT_TIMEOUT_S = 5
_PAGES_AT_ONCE = 2_000


def id_column() -> Column[int]:
    """Return a column that numbers the rows of a table, which SQLite does only with this type."""
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)


class FactsDatabase:
    """Reads and writes in short transactions. Safe to use from several threads; connects at first use."""

    def __init__(self, settings: Settings) -> None:
        """Raises `InvalidSettings` if `facts_url` cannot be used, without showing it."""
        self._url = facts_url(settings)
        self._secrets = [text for text in (settings.facts_url.get_secret_value(), self._url.password) if text]
        self._engine = _engine(self._url)
        self._has_tables = False
        self._lock = threading.Lock()
        self._reading = threading.local()

    @property
    def name(self) -> str:
        """Return the place of the database, for messages; without user and password."""
        place = self._url.database if self._url.host is None else f"{self._url.host}/{self._url.database}"
        return f"{self._url.get_backend_name()} {place}"

    def insert(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows, all or none. Blocks. Raises `FactsUnavailable`.

        In texts, characters that a database refuses are written as their escapes: NUL, which PostgreSQL cannot store, and
        halves of surrogate pairs.
        """
        storable = [{name: _storable(value) for name, value in row.items()} for row in rows]
        with self._transaction() as connection:
            connection.execute(table.insert(), storable)

    def read(
        self, query: Select[Any] | CompoundSelect[Any], values: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        """Return all rows of a query with these values of its parameters. Blocks. Raises `FactsUnavailable`."""
        held: Connection | None = getattr(self._reading, "connection", None)
        with self._transaction() if held is None else nullcontext(held) as connection:
            return connection.execute(query, values).all()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let every `read` of this thread in the block use one connection: to make one takes as long as a small query.

        A block may not be in another one. Blocks. Raises `FactsUnavailable`.
        """
        with self._transaction() as connection:
            self._reading.connection = connection
            try:
                yield
            finally:
                del self._reading.connection

    def newest(self, tables: Sequence[Table]) -> tuple[int, ...]:
        """Return the newest id of each table, 0 if it has no rows. Blocks. Raises `FactsUnavailable`."""
        (row,) = self.read(select(*(select(func.max(table.c.id)).scalar_subquery() for table in tables)))
        return tuple(newest or 0 for newest in row)

    def applications_since(self, tables: Sequence[Table], seen: Sequence[int]) -> set[str]:
        """Return the applications that have rows with ids above those that were `seen`, one for each table. Blocks.

        Rows with smaller ids may be committed later. Raises `FactsUnavailable`.
        """
        named = (select(t.c.application_id).where(t.c.id > newest) for t, newest in zip(tables, seen, strict=True))
        return {row.application_id for row in self.read(union(*named))}

    def delete(self, rows: Delete) -> int:
        """Remove rows, and return how many. Blocks. Raises `FactsUnavailable`."""
        with self._transaction() as connection:
            return connection.execute(rows).rowcount

    def release_disk(self) -> None:
        """Give the space of removed rows back to the disk. Blocks. Raises `FactsUnavailable`.

        PostgreSQL does so by itself, and SQLite only in files that were created with `auto_vacuum`; others stay as they are.
        """
        if self._url.get_backend_name() != "sqlite":
            return
        left = -1
        while True:
            # In parts, so that other writers wait only for a short time.
            with self._transaction() as connection, closing(connection.connection.cursor()) as cursor:
                # It returns an empty row for each page, and only a script is executed beyond its first row.
                cursor.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
                free: int = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
            if free in (0, left):
                return
            left = free

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            self._make_tables()
            with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as error:
            # It may have been replaced by an empty one, so its schema is looked at again.
            self._has_tables = False
            raise FactsUnavailable(
                f"the database of facts, {self.name}, does not answer: {self._format(error)}; start it, or set "
                "TIDEMARK_FACTS_URL"
            ) from None

    def _make_tables(self) -> None:
        """Bring the schema to the newest version, once; another process may be doing the same."""
        with self._lock:
            if self._has_tables:
                return
            with self._engine.connect() as connection:
                has_newest = is_newest(connection)
            if not has_newest:
                self._upgrade()
            self._has_tables = True

    def _upgrade(self) -> None:
        # Alembic takes 0.3 s to import, which an instance that starts again would lose.
        from alembic.util import CommandError

        from tidemark.migrations.upgrade import upgrade_schema

        try:
            upgrade_schema(self._engine)
        except CommandError as error:
            raise FactsUnavailable(
                f"the database of facts, {self.name}, has the schema of another version of Tidemark ({error}); use that "
                "version, or set TIDEMARK_FACTS_URL to another database"
            ) from None

    def _format(self, error: Exception) -> str:
        """Return the driver's message in one line, without secrets."""
        text = " ".join(str(getattr(error, "orig", None) or error).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def facts_url(settings: Settings) -> URL:
    """Return the URL in `facts_url`, by default SQLite in `var_dir`. Raises `InvalidSettings`."""
    given = settings.facts_url.get_secret_value()
    if not given:
        return URL.create("sqlite", database=str(settings.var_dir / "facts.db"))
    try:
        return make_url(given)
    except (ArgumentError, ValueError):
        raise InvalidSettings(
            "setting facts_url: not a database URL; write TIDEMARK_FACTS_URL as "
            "'postgresql+psycopg2://user:password@host/database' or 'sqlite:////folder/facts.db'"
        ) from None


def _engine(url: URL) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            # Connections to SQLite are cheap, and none stays open in a process that writes only once.
            engine = create_engine(
                url, hide_parameters=True, connect_args={"timeout": _BUSY_TIMEOUT_S}, poolclass=NullPool
            )
            event.listen(engine, "do_connect", lambda *_: _make_folder(url))
            event.listen(engine, "connect", _set_up_sqlite)
            return engine
        timeout = {"connect_timeout": _CONNECT_TIMEOUT_S} if url.get_backend_name() == "postgresql" else {}
        return create_engine(url, hide_parameters=True, pool_pre_ping=True, pool_size=1, connect_args=timeout)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise InvalidSettings(
            f"setting facts_url: no driver for {url.drivername} ({type(error).__name__}); install it, or use another in "
            "TIDEMARK_FACTS_URL"
        ) from None


def _make_folder(url: URL) -> None:
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    """Let readers and a writer work in parallel; a power loss may lose a commit, but does not damage the file."""
    cursor = connection.cursor()
    _switch_to_wal(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & _PRIMARY_CODE == sqlite3.SQLITE_BUSY


@retry(
    retry=retry_if_exception(_is_busy),
    stop=stop_after_delay(_BUSY_TIMEOUT_S),
    wait=wait_fixed(_BUSY_PAUSE_S),
    reraise=True,
)
def _switch_to_wal(cursor: sqlite3.Cursor) -> None:
    """Switch to WAL. If two switch a new file at once, SQLite refuses one without waiting for its timeout."""
    if cursor.execute("PRAGMA page_count").fetchone() == (0,):
        # Only an empty file can be made to give space back, and a file with a mode is not empty.
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
        finally:
            # The file may not be empty any more when this is tried again.
            cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_S * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")


def _storable(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return value.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()

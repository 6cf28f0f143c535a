"""The version of the schema in a database, read without Alembic: most processes find the newest one and do not need Alembic."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, column, inspect, select, table

VERSION_TABLE = "tidemark_schema"
"""Not the usual name of Alembic: Airflow has its own versions, perhaps in the same database."""

NEWEST = "0001"
"""The revision of the last script in `versions`."""


def is_newest(connection: Connection) -> bool:
    """Return whether a database has the newest schema. Blocks."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return False
    versions: Sequence[str] = (
        connection.execute(select(column("version_num")).select_from(table(VERSION_TABLE))).scalars().all()
    )
    return versions == [NEWEST]

"""Creates the tables of 0.1.0.

A database from before there were versions has some of them, with these columns: each process made the tables it used.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Float, Integer, String, Text

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables that are missing."""
    _create(
        "audits",
        Column("application_id", String(200), nullable=False),
        Column("audit_id", String(60), nullable=False),
        Column("time_ms", BigInteger, nullable=False),
        Column("task", String(40), nullable=False),
        Column("first_batch", BigInteger, nullable=False),
        Column("last_batch", BigInteger, nullable=False),
        Column("records", BigInteger, nullable=False),
        Column("seconds", Float, nullable=False),
        Column("verdict", String(40), nullable=False),
        Column("position", Text, nullable=False),
        index=["application_id", "task", "id"],
    )
    _create(
        "drills",
        Column("application_id", String(200), nullable=False),
        Column("drill_id", String(40), nullable=False),
        Column("started_ms", BigInteger, nullable=False),
        Column("ended_ms", BigInteger, nullable=False),
        Column("verdict", String(40), nullable=False),
        Column("rto_s", Float),
        Column("rpo_offsets", BigInteger),
        Column("rpo_s", Float),
        Column("key_count", BigInteger, nullable=False),
        Column("byte_count", BigInteger, nullable=False),
        Column("report", Text, nullable=False),
        index=["application_id", "ended_ms"],
    )
    _create(
        "events",
        Column("application_id", String(200), nullable=False),
        Column("topology_version", String(200), nullable=False),
        Column("instance", Integer, nullable=False),
        Column("time_ms", BigInteger, nullable=False),
        Column("kind", String(40), nullable=False),
        Column("body", Text, nullable=False),
        index=["application_id", "time_ms"],
    )
    _create(
        "lag_samples",
        Column("application_id", String(200), nullable=False),
        Column("time_ms", BigInteger, nullable=False),
        Column("topic", String(249), nullable=False),
        Column("topic_partition", Integer, nullable=False),
        Column("low_offset", BigInteger, nullable=False),
        Column("stable_offset", BigInteger, nullable=False),
        Column("end_offset", BigInteger, nullable=False),
        Column("committed_offset", BigInteger),
        index=["application_id", "time_ms"],
    )
    _create(
        "verdicts",
        Column("application_id", String(200), nullable=False),
        Column("check_name", String(60), nullable=False),
        Column("time_ms", BigInteger, nullable=False),
        Column("subject", String(300), nullable=False),
        Column("verdict", String(40), nullable=False),
        Column("message", Text, nullable=False),
        Column("evidence", Text, nullable=False),
        index=["application_id", "check_name", "time_ms"],
    )


def _create(table: str, *columns: Column[Any], index: list[str]) -> None:
    number = Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    op.create_table(table, number, *columns, if_not_exists=True)
    op.create_index(f"{table}_of_application", table, index, if_not_exists=True)

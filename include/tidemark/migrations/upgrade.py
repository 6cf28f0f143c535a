"""Brings the database of facts to the newest schema with Alembic, by the scripts in `versions`."""

from __future__ import annotations

import logging
import threading

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

SCRIPTS = "tidemark:migrations"

_LOCKS = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(8435226673)"}
"""By dialect, the statement after which no other process changes the schema until the transaction ends."""

# Alembic keeps the running migration in global variables.
_one_at_a_time = threading.Lock()

# Otherwise each upgrade writes two lines, also when there is nothing to do.
logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)


def upgrade_schema(engine: Engine) -> None:
    """Run the scripts that the database has not seen, all or none. Blocks while another process does the same.

    Raises `alembic.util.CommandError` if the database has a version that these scripts do not lead to.
    """
    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    with _one_at_a_time, engine.begin() as connection:
        if engine.dialect.name in _LOCKS:
            connection.exec_driver_sql(_LOCKS[engine.dialect.name])
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

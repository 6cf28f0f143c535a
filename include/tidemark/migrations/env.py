"""Runs the scripts, when Alembic loads this file, on the connection and in the transaction of `upgrade_schema`."""

from __future__ import annotations

from alembic import context

from tidemark.migrations.version import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
context.run_migrations()

"""The schema of the database of facts: what the migrations create, and what they do with an existing database."""

from __future__ import annotations

import io
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, func, select
from tests.support.events import state_event

from tidemark.audit.table import AUDITS
from tidemark.checks.lag_sample_table import LAG_SAMPLES
from tidemark.checks.verdict_table import VERDICTS
from tidemark.database import METADATA, FactsDatabase
from tidemark.errors import FactsUnavailable
from tidemark.events.table import EVENTS, write_event
from tidemark.migrations.upgrade import SCRIPTS
from tidemark.migrations.version import NEWEST, VERSION_TABLE
from tidemark.operations.drill_history.table import DRILLS
from tidemark.settings import Settings, project_root

TABLES = (AUDITS, DRILLS, EVENTS, LAG_SAMPLES, VERDICTS)
WITHOUT_VERSION = (Path(__file__).parent / "facts_without_version.sql").read_text()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "facts.db"


@pytest.fixture
def facts(tmp_path):
    return FactsDatabase(Settings.load(var_dir=tmp_path))


def scripts():
    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    return ScriptDirectory.from_config(config)


def differences(file):
    """What a script would still have to change, so that the database has the tables that the code declares."""
    engine = create_engine(f"sqlite:///{file}")
    try:
        with engine.connect() as connection:
            return compare_metadata(
                MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True}),
                METADATA,
            )
    finally:
        engine.dispose()


def ask(file, query):
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def test_should_name_the_last_script_as_the_newest_version():
    assert scripts().get_current_head() == NEWEST


def test_should_not_import_alembic_for_a_database_that_has_the_newest_schema(facts, tmp_path):
    """It takes 0.3 s, which an instance that starts again would lose."""
    facts.read(select(EVENTS))
    code = (
        "import sys, spark_jobs.stream_instance; from pathlib import Path; from sqlalchemy import select; "
        "from tidemark.database import FactsDatabase; from tidemark.events.table import EVENTS; "
        "from tidemark.settings import Settings; "
        f"print(FactsDatabase(Settings.load(var_dir={str(tmp_path)!r})).read(select(EVENTS)), 'alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project_root())
    assert done.stdout.strip() == "[] False"


def test_should_have_the_tables_that_the_code_declares(facts, file):
    assert facts.read(select(EVENTS)) == []
    assert set(METADATA.sorted_tables) == set(TABLES)
    assert differences(file) == []
    assert ask(file, f"SELECT version_num FROM {VERSION_TABLE}") == [(scripts().get_current_head(),)]


@pytest.mark.parametrize("lost", [(), ("drills", "verdicts"), ("audits", "drills", "lag_samples", "verdicts")], ids=str)
def test_should_keep_all_rows_of_a_database_without_a_version(facts, file, lost):
    """Each process used to create only the tables that it used, so some may be missing."""
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(WITHOUT_VERSION)
        for table in lost:
            connection.execute(f"DROP TABLE {table}")
        before = {table.name: connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES
                  if table.name not in lost}  # fmt: skip
    write_event(facts, state_event("RUNNING"))
    assert differences(file) == []
    for table in TABLES:
        kept = ask(file, f"SELECT * FROM {table} ORDER BY id")
        assert kept[:1] == before.get(table.name, kept[:1])
        assert len(kept) == len(before.get(table.name, [])) + (table is EVENTS)


def test_should_apply_a_migration_as_a_whole_or_not_at_all(facts, file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE VIEW verdicts AS SELECT 1 AS id")
    with pytest.raises(FactsUnavailable, match="views may not be indexed"):
        facts.read(select(EVENTS))
    assert ask(file, "SELECT name FROM sqlite_master") == [("verdicts",)]


def test_should_create_the_schema_once_when_several_threads_start(tmp_path, file):
    at_once = threading.Barrier(4)
    counts = []

    def use():
        facts = FactsDatabase(Settings.load(var_dir=tmp_path))
        at_once.wait(60)
        write_event(facts, state_event("RUNNING"))
        counts.append(facts.read(select(func.count()).select_from(EVENTS))[0][0])

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert max(counts) == len(counts) == 4
    assert differences(file) == []


def test_should_be_readable_while_another_process_writes(facts, tmp_path, file):
    write_event(facts, state_event("RUNNING"))
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        # It would wait for the other if it took the lock of a change.
        assert len(FactsDatabase(Settings.load(var_dir=tmp_path)).read(select(EVENTS))) == 1
        assert other.in_transaction


def test_should_leave_a_newer_database_unchanged(facts, tmp_path, file):
    write_event(facts, state_event("RUNNING"))
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        connection.commit()
    with pytest.raises(FactsUnavailable, match=r"another version of Tidemark \(.*9999.*TIDEMARK_FACTS_URL"):
        FactsDatabase(Settings.load(var_dir=tmp_path)).read(select(EVENTS))
    assert ask(file, f"SELECT version_num FROM {VERSION_TABLE}") == [("9999",)]


def test_should_not_touch_the_version_table_of_another_product(facts, file):
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("CREATE TABLE alembic_version (version_num VARCHAR(32)); "
                                 "INSERT INTO alembic_version VALUES ('of Airflow');")  # fmt: skip
    write_event(facts, state_event("RUNNING"))
    assert ask(file, "SELECT version_num FROM alembic_version") == [("of Airflow",)]


def test_should_generate_row_ids_in_postgres_too():
    made = io.StringIO()
    context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": made})
    with Operations.context(context):
        scripts().get_revision("0001").module.upgrade()
    assert "CREATE TABLE IF NOT EXISTS events" in made.getvalue()
    assert made.getvalue().count("id BIGSERIAL NOT NULL") == len(TABLES)
    assert made.getvalue().count("CREATE INDEX IF NOT EXISTS") == len(TABLES)

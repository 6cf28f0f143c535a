"""The DAG `history_cleanup`, run as a whole by Airflow, which has run other DAGs as well."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.airflow.forked_airflow import ForkedAirflow
from tests.support.airflow.operations import Operations

from tidemark.database import FactsDatabase
from tidemark.devstack import airflow_parts
from tidemark.events.event import Event, EventKind
from tidemark.events.table import EventReader, write_event
from tidemark.settings import Settings

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

_DAG = "history_cleanup"
_STREAM = "stream__patient_monitoring"


@dataclass(frozen=True)
class Past:
    """An Airflow without its processes."""

    airflow: ForkedAirflow
    settings: Settings

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(airflow_parts.home(self.settings) / "airflow.db")) as database:
            rows = [database.execute(statement).fetchall() for statement in statements]
            database.commit()
        return rows[-1]


@pytest.fixture
def past(operations: Operations) -> Past:
    return Past(operations.airflow, operations.settings)


def test_should_list_old_history_then_remove_it_but_keep_what_airflow_knows_of_a_stream(past: Past) -> None:
    facts = FactsDatabase(past.settings)
    write_event(facts, Event(EventKind.STATE, "app", "1", 0, 5, {}))
    ended, said = past.airflow.run(_DAG, {"dry_run": True})
    assert ended["tasks"] == {"plan": "success", "remove": "skipped"}, said[-4000:]
    assert "1 rows of events" in said
    assert len(list(EventReader(facts, "app", 0).new())) == 1
    # That run as one of a stream, begun long ago and deferred since; and what two DAGs did then.
    old = "'2020-01-01 00:00:00'"
    past.sql(
        *(
            f"update {table} set dag_id = '{_STREAM}', start_date = {old} where dag_id = '{_DAG}'"
            for table in ("dag_run", "task_instance")
        ),
        *(f"insert into log (dttm, event, dag_id) values ({old}, 'made', '{dag}')" for dag in (_STREAM, "lag_check")),
    )
    ended, said = past.airflow.run(_DAG, {"dry_run": False})
    assert ended["tasks"] == {"plan": "success", "remove": "success"}, said[-4000:]
    assert past.sql(f"select dag_id from log where dttm = {old}") == [(_STREAM,)]
    assert sorted(past.sql(f"select dag_id from dag_run where dag_id in ('{_DAG}', '{_STREAM}')")) == [
        (_DAG,),
        (_STREAM,),
    ]
    assert past.sql(f"select count(*) from task_instance where dag_id = '{_STREAM}'") == [(2,)]
    assert list(EventReader(facts, "app", 0).new()) == []
    facts.close()

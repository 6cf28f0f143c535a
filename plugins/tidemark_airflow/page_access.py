"""Asks Airflow who looks at the Streams page, what that person may do, and which streams' DAGs are on."""

from __future__ import annotations

from collections.abc import Iterable

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import func, select

from tidemark.overview.concerns import stream_dag_id
from tidemark.overview.forms import DagForm, Parameter
from tidemark.overview.metrics import DagView, LastRun
from tidemark.overview.rights import Rights


def rights_of(user: BaseUser, dag_ids: Iterable[str]) -> Rights:
    """Return which of the DAGs the user may see, run, and pause. Blocks: asks the auth manager about each."""
    manager, ids = get_auth_manager(), list(dag_ids)
    teams = DagModel.get_dag_id_to_team_name_mapping(ids)
    details = {dag_id: DagDetails(id=dag_id, team_name=teams.get(dag_id)) for dag_id in ids}
    readable = {i for i in ids if manager.is_authorized_dag(method="GET", details=details[i], user=user)}
    triggerable = {
        i
        for i in readable
        if manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details[i], user=user)
    }
    editable = {i for i in readable if manager.is_authorized_dag(method="PUT", details=details[i], user=user)}
    return Rights(frozenset(readable), frozenset(triggerable), frozenset(editable))


def dags_that_are_on(topologies: Iterable[str]) -> dict[str, bool]:
    """Return by topology whether its DAG is on; leaves out topologies of which Airflow has no DAG. Blocks."""
    ids = {stream_dag_id(name): name for name in topologies}
    query = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(ids), DagModel.is_stale.is_(False))
    with create_session() as session:
        return {ids[row.dag_id]: not row.is_paused for row in session.execute(query)}


def dags_of(dag_ids: Iterable[str]) -> list[DagView]:
    """Return the DAGs that Airflow has of these, with the last run of each state. Blocks."""
    ids = list(dag_ids)
    query = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(ids), DagModel.is_stale.is_(False))
    newest = (
        select(DagRun.dag_id, DagRun.state, func.max(DagRun.run_after).label("began"))
        .where(DagRun.dag_id.in_(ids))
        .group_by(DagRun.dag_id, DagRun.state)
    )
    runs: dict[str, list[LastRun]] = {}
    with create_session() as session:
        for row in session.execute(newest):
            runs.setdefault(row.dag_id, []).append(LastRun(str(row.state), int(row.began.timestamp() * 1000)))
        return [
            DagView(row.dag_id, not row.is_paused, tuple(runs.get(row.dag_id, ()))) for row in session.execute(query)
        ]


def form_of(dag_id: str) -> DagForm | None:
    """Return what a form that triggers the DAG has to show; None if Airflow has no such DAG. Blocks."""
    with create_session() as session:
        model = session.scalar(select(DagModel).where(DagModel.dag_id == dag_id, DagModel.is_stale.is_(False)))
        dag = SerializedDagModel.get_dag(dag_id, session=session)
        if model is None or dag is None:
            return None
        found = ((name, dag.params.get_param(name)) for name in dag.params)
        parameters = {name: Parameter(one.value, one.schema, one.description or "") for name, one in found}
        return DagForm(dag_id, dag.description or "", model.is_paused, parameters)


def login_address() -> str:
    """Return the address of the login page, relative to Airflow's."""
    return str(get_auth_manager().get_url_login())

"""What tests let Airflow do by itself, without its processes, in an interpreter that has Airflow's environment."""

from __future__ import annotations

from typing import Any

from airflow import settings
from airflow._shared.timezones import timezone
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbag import DBDagBag
from airflow.models.deadline import Deadline
from airflow.models.taskinstance import clear_task_instances
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType


def run_dag(file: str, dag_id: str, conf: dict[str, Any], marked: str) -> dict[str, Any]:
    """Run a DAG. Returns how the run and its tasks ended. The task `marked` is not run, but marked successful."""
    # `dag.test` reads all DAGs of this folder again, and none of them starts another one.
    settings.DAGS_FOLDER = file
    dag = DagBag(file).dags[dag_id]
    run = dag.test(run_conf=conf, mark_success_pattern=marked or None)
    instances = run.get_task_instances()
    ended = {t.task_id + (f"[{t.map_index}]" if t.map_index >= 0 else ""): str(t.state) for t in instances}
    return {"run": str(run.state), "tasks": ended}


def clear_failed_run(file: str, dag_id: str, conf: dict[str, Any]) -> dict[str, Any]:
    """Make a run that failed, and clear its tasks as its page clears them.

    Returns the run's state after that, and for each deadline the least and the most seconds that it is after the creation of
    the run, which lies between two looks at the clock.
    """
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(DagBag(file, bundle_name="dags-folder"), "dags-folder", None)
    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        before = timezone.utcnow()
        run = dag.create_dagrun(
            run_id="one", run_after=before, run_type=DagRunType.MANUAL, conf=conf,
            triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.QUEUED, session=session,
        )  # fmt: skip
        session.flush()
        after = timezone.utcnow()
        deadlines = session.query(Deadline).filter_by(dagrun_id=run.id)
        due = [[(row.deadline_time - looked).total_seconds() for looked in (after, before)] for row in deadlines]
        run.state = DagRunState.FAILED
        clear_task_instances(run.get_task_instances(session=session), session)
        return {"run": str(run.state), "due_s": due}

"""The tasks of `compaction_check` that set topics after an approval: they call `tidemark.operations.case.topic_settings`.

Tasks import this module when they run, because it loads clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from tidemark.clock import wall_clock_ms
from tidemark.errors import StartRefused
from tidemark.operations.case.case import Case, CaseFolder, case_id_of
from tidemark.operations.case.topic_settings import CASES_FOLDER, TopicSettingsChange
from tidemark.settings import Settings
from tidemark.topology_loader import load
from tidemark_airflow.operations import chosen


def topic_settings_of(context: Mapping[str, Any]) -> TopicSettingsChange:
    """Return the topic settings of a run's case. It is the same for each task and each try of the run.

    Raises `AirflowFailException` if another run with the same `run_after` has opened the case.
    """
    run, settings = context["dag_run"], Settings.load()
    names, case_id = chosen(context["params"]), case_id_of(run.run_after)
    folder = CaseFolder.of(settings.var_dir, CASES_FOLDER, case_id, wall_clock_ms)
    asked_ms = int(run.run_after.timestamp() * 1000)
    case = Case(case_id, run.dag_id, ", ".join(names), CASES_FOLDER, {}, False, "", asked_ms, run.run_id)
    try:
        folder.open(case)
    except StartRefused as error:
        raise AirflowFailException(str(error)) from error
    return TopicSettingsChange([load(name).plan() for name in names], settings, folder)

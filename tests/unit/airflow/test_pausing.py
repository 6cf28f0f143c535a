"""`stream_pauses` stops an application only if all DAGs that name it are paused."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from tidemark_airflow.pausing import applications_to_stop

TAGS = ["clicks", "stream", "tidemark"]


def to_stop(streams: Mapping[str, str | None], airflow: Mapping[str, bool | int]) -> dict[str, str]:
    """`airflow` has for each DAG whether it is paused, or the status code with which its API server answers."""

    def get_dag(dag_id: str) -> SimpleNamespace:
        found = airflow[dag_id]
        if isinstance(found, bool):
            return SimpleNamespace(is_paused=found, tags=TAGS)
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": found}))

    ti: Any = SimpleNamespace(get_dag=get_dag)
    return applications_to_stop(ti, streams)


@pytest.mark.parametrize(
    ("second", "is_stopped"),
    [(True, True), (False, False), (404, True), (500, False)],
    ids=["paused", "unpaused", "unknown to Airflow", "not readable"],
)
def test_should_stop_an_application_only_if_every_dag_that_names_it_is_paused(
    second: bool | int, is_stopped: bool
) -> None:
    streams = {"stream__clicks": "clicks", "stream__clicks_v2": "clicks", "stream__other": "other"}
    stopped = to_stop(streams, {"stream__clicks": True, "stream__clicks_v2": second, "stream__other": True})
    assert ("stream__clicks" in stopped) is is_stopped
    assert stopped["stream__other"] == "other"


@pytest.mark.parametrize(("is_paused", "is_stopped"), [(True, True), (False, False)])
def test_should_know_the_application_of_a_module_that_does_not_load_by_the_tags_of_its_dag(
    is_paused: bool, is_stopped: bool
) -> None:
    streams = {"stream__clicks": None, "stream__clicks_v2": "clicks"}
    stopped = to_stop(streams, {"stream__clicks": is_paused, "stream__clicks_v2": True})
    assert stopped == ({"stream__clicks_v2": "clicks"} if is_stopped else {})

"""A task of a stream's DAG without Airflow's parts: an operator, its context, and what it defers to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError, ErrorType, TaskDeferred
from airflow.sdk.execution_time.comms import ErrorResponse
from tests.support.airflow.stream_bench import Bench

from tidemark_airflow.stream_operator import StandbyOperator, StreamOperator
from tidemark_airflow.stream_trigger import BackoffTrigger, BrokerTrigger, ElsewhereTrigger, HoldTrigger, StreamTrigger

Waiting = StreamTrigger | BackoffTrigger | BrokerTrigger | ElsewhereTrigger | HoldTrigger


class TaskState:
    """Airflow's task state store: JSON values, None not allowed. It refuses to store anything once the run is deleted."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.is_deleted = False

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.values[key]) if key in self.values else default

    def set(self, key: str, value: Any) -> None:
        assert value is not None
        if self.is_deleted:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 404}))
        self.values[key] = json.dumps(value)


class Task:
    """One task instance with its operator, and what it deferred to last."""

    def __init__(self, bench: Bench, **params: int) -> None:
        self.bench = bench
        self.context: dict[str, Any] = {"task_state_store": TaskState(), "params": params}
        self.deferred: TaskDeferred | None = None
        self.operator = self.new_operator()

    def new_operator(self) -> StreamOperator:
        """As each worker process makes its own."""
        key = self.bench.files.key
        kind = StandbyOperator if key.is_standby else StreamOperator
        operator = kind(
            task_id=key.kind, topology=self.bench.topology, application_id=key.application_id, instance=key.instance
        )
        operator.build_command = lambda *_: self.bench.command
        return operator

    def step(self, method: str = "execute", **kwargs: Any) -> Waiting:
        """Run one method in a new operator, to its deferral."""
        self.operator = self.new_operator()
        with pytest.raises(TaskDeferred) as deferred:
            getattr(self.operator, method)(context=self.context, **kwargs)
        self.deferred = deferred.value
        trigger = deferred.value.trigger
        assert isinstance(trigger, Waiting)
        return trigger

    def resume(self, exit_code: int | None) -> Waiting:
        return self.step("resume", event={"exit_code": exit_code})

    def fail(self, exit_code: int | None) -> AirflowFailException:
        """Resume and return the failure that no retry follows."""
        with pytest.raises(AirflowFailException) as failure:
            self.new_operator().resume(context=self.context, event={"exit_code": exit_code})
        return failure.value

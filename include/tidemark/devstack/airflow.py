"""A small client of Airflow's REST API, for the demo, the smoke test and `tidemark up`. Every call blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx

from tidemark.devstack.record import AirflowAccess
from tidemark.errors import TidemarkError
from tidemark.processes import wait_until

# Longer than one request may wait for another's lock on SQLite; a request for health does not wait that long.
_ANSWER_S = 45.0
_HEALTH_S = 10.0

HEARTBEATS = {
    "scheduler": "latest_scheduler_heartbeat",
    "triggerer": "latest_triggerer_heartbeat",
    "dag_processor": "latest_dag_processor_heartbeat",
}


class AirflowRefused(TidemarkError):
    """Airflow answered with an error; `status` is the HTTP status, 0 if it did not answer at all."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AirflowApi:
    """Airflow as one user sees it; requests a token when it first needs one."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url.rstrip("/")
        self._user = user
        self._password = password
        self._token = ""
        # The API is on this machine: a proxy from the environment would look for it elsewhere, and no redirect is followed.
        # No connection is kept, because Airflow may be started again between two requests.
        self._client = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))

    @classmethod
    def of(cls, access: AirflowAccess) -> AirflowApi:
        """Return the client of a running stack's administrator; raises `TidemarkError` if the password cannot be read."""
        try:
            passwords = json.loads(Path(access.password_file).read_text())
            return cls(access.url, access.username, passwords[access.username])
        except (OSError, ValueError, KeyError) as error:
            raise TidemarkError(
                f"cannot read the password of {access.username} in {access.password_file} ({error}): run `tidemark up`"
            ) from error

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one authenticated request, such as `call("GET", "/api/v2/dags")`; raises `AirflowRefused`."""
        if self._token:
            try:
                return self._request(method, path, body, self._token)
            except AirflowRefused as refused:
                # The stack may have been started again with other secrets, or the token is a day old.
                if refused.status != 401:
                    raise
        self._token = self.log_in()
        return self._request(method, path, body, self._token)

    def log_in(self) -> str:
        """Return a new token of the user; raises `AirflowRefused`."""
        login = {"username": self._user, "password": self._password}
        return cast(str, self._request("POST", "/auth/token", login, token="")["access_token"])

    def health(self) -> dict[str, Any]:
        """Return the state that every part reports; needs no login."""
        return self._request("GET", "/api/v2/monitor/health", None, token="", timeout_s=_HEALTH_S)

    def unhealthy(self, since: float = 0.0) -> list[str]:
        """Return the parts that are not healthy, or sent no heartbeat since `since` (epoch seconds); all if none answers."""
        try:
            said = self.health()
        except AirflowRefused:
            return ["api-server", *HEARTBEATS]
        found = [] if said.get("metadatabase", {}).get("status") == "healthy" else ["metadatabase"]
        for part, heartbeat in HEARTBEATS.items():
            state = said.get(part) or {}
            beat = state.get(heartbeat)
            if state.get("status") != "healthy" or not beat or datetime.fromisoformat(beat).timestamp() < since:
                found.append(part)
        return found

    def wait_for_dag(self, dag_id: str, timeout_s: float = 60.0) -> None:
        """Wait until the DAG has been parsed; raises `AirflowRefused` with the import errors if it is not."""

        def is_there() -> bool:
            try:
                self.call("GET", f"/api/v2/dags/{_quoted(dag_id)}")
                return True
            except AirflowRefused as refused:
                if refused.status not in {0, 404}:
                    raise
                return False

        if not wait_until(is_there, timeout_s, every_s=0.5):
            errors = self.call("GET", "/api/v2/importErrors").get("import_errors", [])
            reasons = "; ".join(f"{e['filename']}: {e['stack_trace'].strip().splitlines()[-1]}" for e in errors)
            raise AirflowRefused(
                f"Airflow has no DAG {dag_id} after {timeout_s:.0f} s: {reasons or 'no import error'}", 404
            )

    def unpause(self, dag_id: str) -> None:
        """Unpause the DAG."""
        self.call("PATCH", f"/api/v2/dags/{_quoted(dag_id)}", {"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Pause the DAG, so that no further run starts."""
        self.call("PATCH", f"/api/v2/dags/{_quoted(dag_id)}", {"is_paused": True})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run; returns its id."""
        body = {"logical_date": None, "conf": dict(conf or {})}
        return cast(str, self.call("POST", f"/api/v2/dags/{_quoted(dag_id)}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return queued, running, success or failed."""
        return cast(str, self.call("GET", self._run(dag_id, run_id))["state"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """Return the DAG's runs, the newest first."""
        path = f"/api/v2/dags/{_quoted(dag_id)}/dagRuns?order_by=-run_after&limit=100"
        return cast(list[dict[str, Any]], self.call("GET", path)["dag_runs"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state of each task instance of a run."""
        said = self.call("GET", f"{self._run(dag_id, run_id)}/taskInstances")
        return {task["task_id"]: task["state"] for task in said["task_instances"]}

    def stop_run(self, dag_id: str, run_id: str) -> None:
        """Mark a run failed, as the stop button of the page does; its running and deferred tasks end."""
        self.call("PATCH", self._run(dag_id, run_id), {"state": "failed"})

    def _run(self, dag_id: str, run_id: str) -> str:
        return f"/api/v2/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}"

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, token: str, timeout_s: float = _ANSWER_S
    ) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            answer = self._client.request(method, self.url + path, json=body, headers=headers, timeout=timeout_s)
            answer.raise_for_status()
            return cast(dict[str, Any], answer.json()) if answer.content else {}
        except httpx.HTTPStatusError as error:
            status, detail = error.response.status_code, error.response.text[:500]
            raise AirflowRefused(f"Airflow refused {method} {path} with {status}: {detail}", status) from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise AirflowRefused(f"Airflow does not answer at {self.url} ({error}): see `tidemark status`") from error


def _quoted(part: str) -> str:
    return quote(part, safe="")

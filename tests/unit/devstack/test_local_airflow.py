"""The client of Airflow's API, against a server that answers as Airflow does, and the environment of its parts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from tidemark import processes
from tidemark.devstack import airflow_parts, ports
from tidemark.devstack.airflow import HEARTBEATS, AirflowApi, AirflowRefused
from tidemark.settings import Settings

BEAT = "2026-01-01T00:00:10+00:00"
BEAT_S = 1767225610.0
# No process listens on this port, nor will one.
NOBODY = f"http://{ports.LOOPBACK}:1"


class Stub(ThreadingHTTPServer):
    """Answers from a table of (method, path); keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__((ports.LOOPBACK, 0), _Handler)
        self.tokens = ["first", "second"]
        self.valid = "first"
        self.answers: dict[tuple[str, str], Any] = {}
        self.moved: dict[str, str] = {}
        self.asked: list[tuple[str, str, Any]] = []

    def health(self, **states: str) -> None:
        said: dict[str, Any] = {"metadatabase": {"status": "healthy"}}
        for part, heartbeat in HEARTBEATS.items():
            said[part] = {"status": states.get(part, "healthy"), heartbeat: BEAT}
        self.answers["GET", "/api/v2/monitor/health"] = said


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, self.path, body))
        if self.path in self.server.moved:
            self.report(307, {})
        elif self.path == "/auth/token":
            self.server.valid = self.server.tokens.pop(0)
            self.report(201, {"access_token": self.server.valid})
        elif self.path != "/api/v2/monitor/health" and self.headers["Authorization"] != f"Bearer {self.server.valid}":
            self.report(401, {"detail": "who are you"})
        elif (self.command, self.path) in self.server.answers:
            self.report(200, self.server.answers[self.command, self.path])
        else:
            self.report(404, {"detail": "no such thing"})

    do_GET = do_POST = do_PATCH = answer

    def report(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        if self.path in self.server.moved:
            self.send_header("Location", self.server.moved[self.path])
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def api(stub: Stub) -> AirflowApi:
    return AirflowApi(f"http://{ports.LOOPBACK}:{stub.server_port}", "admin", "secret")


def test_should_trigger_a_run_without_a_logical_date(api: AirflowApi, stub: Stub) -> None:
    stub.answers["POST", "/api/v2/dags/a%2Fb/dagRuns"] = {"dag_run_id": "run 1"}
    assert api.trigger("a/b", {"n": 1}) == "run 1"
    assert stub.asked[0] == ("POST", "/auth/token", {"username": "admin", "password": "secret"})
    assert stub.asked[-1][2] == {"logical_date": None, "conf": {"n": 1}}


def test_should_renew_an_expired_token_once(api: AirflowApi, stub: Stub) -> None:
    stub.answers["GET", "/api/v2/dags/a/dagRuns/r"] = {"state": "running"}
    assert api.run_state("a", "r") == "running"
    stub.valid = "something else"
    assert api.run_state("a", "r") == "running"
    assert [path for _, path, _ in stub.asked].count("/auth/token") == 2


def test_should_report_status_and_reason_of_a_refusal(api: AirflowApi) -> None:
    with pytest.raises(AirflowRefused, match=r"PATCH /api/v2/dags/a with 404: .*no such thing") as refused:
        api.unpause("a")
    assert refused.value.status == 404


def test_should_not_use_a_proxy_from_the_environment(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, NOBODY)
    stub.health()
    assert AirflowApi(f"http://{ports.LOOPBACK}:{stub.server_port}", "admin", "secret").unhealthy() == []


def test_should_not_follow_a_redirect_to_another_server(api: AirflowApi, stub: Stub) -> None:
    stub.moved["/api/v2/monitor/health"] = f"http://{ports.LOOPBACK}:{stub.server_port}/elsewhere"
    stub.answers["GET", "/elsewhere"] = {}
    with pytest.raises(AirflowRefused, match="GET /api/v2/monitor/health with 307"):
        api.health()
    assert [path for _, path, _ in stub.asked] == ["/api/v2/monitor/health"]


def test_should_name_a_server_that_is_away() -> None:
    with pytest.raises(AirflowRefused, match=f"{NOBODY}.*tidemark status"):
        AirflowApi(NOBODY, "admin", "secret").health()
    assert AirflowApi(NOBODY, "admin", "secret").unhealthy() == ["api-server", *HEARTBEATS]


@pytest.mark.parametrize(("since", "found"), [(-1, []), (0, []), (1, list(HEARTBEATS))])
def test_should_ignore_a_sign_of_life_from_before_the_start(
    api: AirflowApi, stub: Stub, since: int, found: list[str]
) -> None:
    stub.health()
    assert api.unhealthy(since=BEAT_S + since) == found


def test_should_name_a_part_that_is_not_healthy(api: AirflowApi, stub: Stub) -> None:
    stub.health(triggerer="unhealthy")
    assert api.unhealthy() == ["triggerer"]


def test_should_report_the_import_error_of_a_dag_that_does_not_load(api: AirflowApi, stub: Stub) -> None:
    errors = [{"filename": "dags/a.py", "stack_trace": "Traceback\nKeyError: 'x'\n"}]
    stub.answers["GET", "/api/v2/importErrors"] = {"import_errors": errors}
    with pytest.raises(AirflowRefused, match=r"no DAG a .*dags/a\.py: KeyError: 'x'"):
        api.wait_for_dag("a", timeout_s=0)


def test_should_share_secrets_between_the_parts_and_listen_on_loopback_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", "/somewhere/else")
    settings = Settings.load(var_dir=tmp_path)
    (tmp_path / "airflow").mkdir()
    first = airflow_parts.environment(settings, "one", 28080)
    assert first == airflow_parts.environment(settings, "one", 28080)
    assert first["AIRFLOW__API__HOST"] == ports.LOOPBACK
    assert first["AIRFLOW__CORE__DAGS_FOLDER"].endswith("/dags")
    assert "/somewhere" not in first["AIRFLOW__CORE__DAGS_FOLDER"]
    assert first[processes.MARK] == "one"
    assert first["TIDEMARK_VAR_DIR"] == str(tmp_path)
    assert ports.LOOPBACK in first["NO_PROXY"].split(",")
    assert len(first["AIRFLOW__API_AUTH__JWT_SECRET"]) >= 32
    assert (
        Fernet(first["AIRFLOW__CORE__FERNET_KEY"]).decrypt(Fernet(first["AIRFLOW__CORE__FERNET_KEY"]).encrypt(b"s"))
        == b"s"
    )
    assert (tmp_path / "airflow" / "secrets.json").stat().st_mode & 0o777 == 0o600


def test_should_let_a_worker_wait_for_the_api_server_while_that_waits_for_the_database(tmp_path: Path) -> None:
    """A worker whose requests end by their time limit gives up a task that is well."""
    made = airflow_parts.environment(Settings.load(var_dir=tmp_path), "one", 28080)
    assert made["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith(f"?timeout={airflow_parts.LOCKED_S}")
    assert float(made["AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT"]) > airflow_parts.LOCKED_S


def test_should_add_a_key_that_an_earlier_version_lacked_and_keep_the_others(tmp_path: Path) -> None:
    settings, file = Settings.load(var_dir=tmp_path), tmp_path / "airflow" / "secrets.json"
    file.parent.mkdir()
    file.write_text('{"jwt_secret": "j", "api_secret_key": "a"}')
    made = airflow_parts.environment(settings, "one", 28080)
    assert (made["AIRFLOW__API_AUTH__JWT_SECRET"], made["AIRFLOW__API__SECRET_KEY"]) == ("j", "a")
    assert Fernet(made["AIRFLOW__CORE__FERNET_KEY"])
    assert file.stat().st_mode & 0o777 == 0o600


def test_should_let_only_the_administrator_see_connections() -> None:
    assert airflow_parts.USERS == {"admin": "admin", "oncall": "user", "guest": "viewer"}

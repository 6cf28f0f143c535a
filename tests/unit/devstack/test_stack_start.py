"""The start of Airflow says which part it waits for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.devstack import stack
from tidemark.devstack.airflow import AirflowRefused
from tidemark.devstack.record import AirflowAccess, Service, StackRecord
from tidemark.errors import PreflightFailed
from tidemark.processes import MARK, Identity
from tidemark.settings import Settings


@pytest.fixture
def starter(tmp_path, monkeypatch):
    made = stack._Starter(Settings.load(var_dir=tmp_path), StackRecord("stack", 0.0))
    monkeypatch.setattr(made, "_is_alive", lambda _name: True)
    return made


def test_should_name_the_parts_that_are_not_healthy_yet(starter):
    answers = iter([["api-server", "scheduler"], ["scheduler"], []])
    reported = []
    api = SimpleNamespace(unhealthy=lambda: next(answers), log_in=lambda: "token")
    starter._wait_for_airflow(api, 0.0, reported.append)
    assert reported == ["Airflow: waits for api-server, scheduler", "Airflow: waits for scheduler"]


def test_should_name_the_part_that_never_became_healthy(starter, monkeypatch):
    monkeypatch.setattr(stack, "READY_TIMEOUT_S", 0.0)
    api = SimpleNamespace(unhealthy=lambda: ["dag_processor"])
    with pytest.raises(PreflightFailed, match="Airflow's dag-processor did not become healthy"):
        starter._wait_for_airflow(api, 0.0, lambda _text: None)


def test_should_not_take_another_airflow_on_the_same_port_for_its_own(starter, monkeypatch):
    def refuse():
        raise AirflowRefused("Airflow refused POST /auth/token with 401", 401)

    monkeypatch.setattr(stack, "READY_TIMEOUT_S", 0.0)
    api = SimpleNamespace(unhealthy=list, log_in=refuse)
    with pytest.raises(PreflightFailed, match="Airflow's api-server did not become healthy"):
        starter._wait_for_airflow(api, 0.0, lambda _text: None)


@pytest.mark.parametrize(
    ("own_broker", "with_airflow", "is_missing", "is_at_work", "archives"),
    [
        (True, True, True, False, 1),
        (True, True, True, True, 0),
        (True, True, False, False, 0),
        (True, False, True, False, 0),
        (False, True, True, False, 0),
    ],
)
def test_should_archive_classes_beside_a_new_stack(
    starter, monkeypatch, own_broker, with_airflow, is_missing, is_at_work, archives
):
    began, gave_way, done = [], [], []
    if own_broker:
        starter._record.services[stack.BROKER] = SimpleNamespace(identity=Identity(1, 0.0, "b"), port=9092, log="")
    monkeypatch.setattr(stack, "brokers_answer", lambda *_: True)
    monkeypatch.setattr(stack.jars, "ensure", lambda *_: [])
    monkeypatch.setattr(stack.record, "save", lambda *_: None)
    monkeypatch.setattr(starter, "_broker", lambda *_: done.append("broker"))
    monkeypatch.setattr(starter, "_airflow", lambda *_: done.append("Airflow"))
    monkeypatch.setattr(stack.archives, "is_archive_missing", lambda _settings: is_missing)
    monkeypatch.setattr(stack.archives, "is_at_work", lambda: is_at_work)

    def start(command, _log, environment, _folder):
        began.append((command[3:], environment[MARK], sorted(done)))
        return Identity(7, 0.0, "b")

    monkeypatch.setattr(stack.processes, "start", start)
    monkeypatch.setattr(stack.processes, "give_way", gave_way.append)
    if not own_broker:
        starter._settings = Settings.load(var_dir=starter._settings.var_dir, bootstrap_servers="other:9092")
    starter.run(with_airflow)
    parts = sorted((["broker"] if own_broker else []) + (["Airflow"] if with_airflow else []))
    assert began == [(["jars", "kafka", "spark"], "stack", parts)] * archives
    assert gave_way == [7] * archives


def test_a_stack_should_run_also_when_classes_cannot_be_archived(starter, monkeypatch, caplog):
    def start(*_given):
        raise OSError("no more processes")

    monkeypatch.setattr(stack.archives, "is_archive_missing", lambda _settings: True)
    monkeypatch.setattr(stack.archives, "is_at_work", lambda: False)
    monkeypatch.setattr(stack.processes, "start", start)
    starter._archive_classes()
    assert "failed to start the process that archives classes: no more processes" in caplog.text


@pytest.fixture
def airflow_runs_with(starter, monkeypatch):
    """A function that runs `up` and returns its steps: the broker that it would start, and the address for Airflow."""
    done: list[str] = []
    monkeypatch.setattr(stack, "brokers_answer", lambda *_: True)
    monkeypatch.setattr(stack.jars, "ensure", lambda *_: [])
    monkeypatch.setattr(stack.ports, "choose", lambda preferred, _taken=frozenset(): preferred)
    monkeypatch.setattr(starter, "_broker", lambda _kafka, port: done.append(f"broker at {port}"))
    monkeypatch.setattr(starter, "_airflow", lambda settings, _report: done.append(settings.bootstrap_servers))
    monkeypatch.setattr(starter, "_archive_classes", lambda: None)

    def up_with(recorded, own_port=None, **given):
        if recorded:
            starter._record.settings["bootstrap_servers"] = recorded
        if own_port:
            starter._record.services[stack.BROKER] = Service(1, 0.0, "b", own_port, "log")
        starter._settings = Settings.load(var_dir=starter._settings.var_dir, **given)
        starter.run(with_airflow=True)
        return sorted(done)

    return up_with


_EXTERNAL = "kafka.example:9092"


@pytest.mark.parametrize(
    ("recorded", "own_port", "given", "done"),
    [
        (None, None, None, ["127.0.0.1:9092", "broker at 9092"]),
        ("127.0.0.1:9093", 9093, None, ["127.0.0.1:9093", "broker at 9093"]),
        ("127.0.0.1:9093", 9093, "127.0.0.1:9093", ["127.0.0.1:9093", "broker at 9093"]),
        (None, None, _EXTERNAL, [_EXTERNAL]),
        (_EXTERNAL, None, _EXTERNAL, [_EXTERNAL]),
        (_EXTERNAL, None, None, [_EXTERNAL]),
        ("127.0.0.1:9093", 9093, _EXTERNAL, [_EXTERNAL]),
        (_EXTERNAL, 9093, "127.0.0.1:9093", ["127.0.0.1:9093", "broker at 9093"]),
        # One's own broker may listen where this stack's broker does by default.
        (None, None, "127.0.0.1:9092", ["127.0.0.1:9092"]),
        ("127.0.0.1:9092", None, None, ["127.0.0.1:9092"]),
        ("127.0.0.1:9093", 9093, "127.0.0.1:9092", ["127.0.0.1:9092"]),
    ],
)
def test_should_start_a_broker_only_if_no_other_address_is_set_or_recorded(
    airflow_runs_with, recorded, own_port, given, done
):
    settings = {} if given is None else {"bootstrap_servers": given}
    assert airflow_runs_with(recorded, own_port, **settings) == done


def test_should_record_no_address_of_an_own_broker_that_was_not_started(starter, monkeypatch):
    def fail(_broker):
        raise PreflightFailed("failed to format the broker's folder")

    monkeypatch.setattr(starter, "_is_alive", lambda _name: False)
    monkeypatch.setattr(stack.EmbeddedBroker, "launch", fail)
    monkeypatch.setattr(stack.jars, "ensure", lambda *_: [])
    with pytest.raises(PreflightFailed, match="failed to format"):
        starter.run(with_airflow=False)
    assert starter._record.settings == {}
    assert starter._external_address() is None


@pytest.mark.parametrize(
    ("changed", "done"),
    [
        ({}, []),
        ({"commit_interval_ms": 5}, ["stopped"]),
        ({"bootstrap_servers": _EXTERNAL}, ["stopped"]),
        ({"sasl_password": "another"}, ["stopped"]),
    ],
)
def test_should_start_airflow_again_only_with_other_settings(starter, monkeypatch, changed, done):
    stopped = []
    access = AirflowAccess("http://127.0.0.1:1", "admin", "passwords.json")
    starter._record.services["api-server"] = Service(1, 0.0, "b", 1, "log")
    monkeypatch.setattr(stack.airflow_parts, "environment", lambda *_: {})
    monkeypatch.setattr(stack.airflow_parts, "prepare", lambda *_: None)
    monkeypatch.setattr(stack, "AirflowAccess", lambda *_: access)
    monkeypatch.setattr(stack.AirflowApi, "of", lambda _access: None)
    monkeypatch.setattr(starter, "_wait_for_airflow", lambda *_: None)
    monkeypatch.setattr(starter, "_stop_airflow", lambda: stopped.append("stopped"))
    monkeypatch.setattr(stack.ports, "choose", lambda preferred, _taken=frozenset(): preferred)
    starter._airflow(starter._settings, lambda _text: None)
    stopped.clear()
    # The next `up` reads the record from its file.
    starter._record = stack.record.load(starter._settings.var_dir)
    starter._airflow(Settings.load(var_dir=starter._settings.var_dir, **changed), lambda _text: None)
    assert stopped == done
    assert "another" not in stack.stack_file(starter._settings.var_dir).read_text()

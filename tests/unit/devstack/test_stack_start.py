"""The start of Airflow says which part it waits for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.devstack import stack
from tidemark.devstack.record import StackRecord
from tidemark.errors import PreflightFailed
from tidemark.settings import Settings


@pytest.fixture
def starter(tmp_path, monkeypatch):
    made = stack._Starter(Settings.load(var_dir=tmp_path), StackRecord("stack", 0.0))
    monkeypatch.setattr(made, "_is_alive", lambda _name: True)
    return made


def test_should_name_the_parts_that_are_not_healthy_yet(starter):
    answers = iter([["api-server", "scheduler"], ["scheduler"], []])
    reported = []
    starter._wait_for_airflow(SimpleNamespace(unhealthy=lambda: next(answers)), 0.0, reported.append)
    assert reported == ["Airflow: waits for api-server, scheduler", "Airflow: waits for scheduler"]


def test_should_name_the_part_that_never_became_healthy(starter, monkeypatch):
    monkeypatch.setattr(stack, "READY_TIMEOUT_S", 0.0)
    api = SimpleNamespace(unhealthy=lambda: ["dag_processor"])
    with pytest.raises(PreflightFailed, match="Airflow's dag-processor did not become healthy"):
        starter._wait_for_airflow(api, 0.0, lambda _text: None)


@pytest.mark.parametrize(
    ("runs", "is_missing", "archives_classes", "made"),
    [
        (False, True, True, ["archives", "broker"]),
        (False, False, True, ["broker"]),
        (False, True, False, ["broker"]),
        (True, True, True, []),
    ],
)
def test_should_archive_classes_before_the_broker_starts(
    starter, monkeypatch, runs, is_missing, archives_classes, made
):
    done, reported = [], []
    broker = SimpleNamespace(identity=None, launch=lambda: done.append("broker"), wait_ready=lambda: None)
    monkeypatch.setattr(stack, "EmbeddedBroker", lambda *_args, **_options: broker)
    monkeypatch.setattr(stack, "answers", lambda _address: True)
    monkeypatch.setattr(starter, "_is_alive", lambda _name: runs)
    monkeypatch.setattr(stack.archives, "is_archive_missing", lambda _settings: is_missing)
    monkeypatch.setattr(stack.archives, "make_archives", lambda _settings: done.append("archives"))
    starter._broker([], 9092, reported.append, archives_classes=archives_classes)
    assert done == made
    assert ("archiving" in " ".join(reported)) == ("archives" in made)

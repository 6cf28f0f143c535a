"""When a node, or a cluster, counts as ready; without a process, and with the answers of a busy one."""

from __future__ import annotations

import pytest

from tidemark.devstack import broker
from tidemark.devstack.broker import EmbeddedBroker, EmbeddedCluster
from tidemark.errors import PreflightFailed


@pytest.fixture
def killed(monkeypatch):
    """The folders of the nodes that were killed; all others live."""
    found: list[str] = []
    monkeypatch.setattr(EmbeddedBroker, "is_alive", lambda self: self.folder.name not in found)
    monkeypatch.setattr(EmbeddedBroker, "kill", lambda self: found.append(self.folder.name))
    return found


def answering(monkeypatch, *answers):
    """The nodes answer these, one after the other, and nothing afterwards."""
    left = list(answers)
    monkeypatch.setattr(broker, "answers", lambda *_, **__: left.pop(0) if left else False)


def test_should_not_kill_a_node_that_is_slow_after_it_was_ready(monkeypatch, killed, tmp_path):
    answering(monkeypatch, False, True)
    EmbeddedBroker(tmp_path / "node", []).wait_ready(timeout_s=60)
    assert killed == []


def test_should_not_kill_a_node_of_a_cluster_that_is_slow_after_all_were_ready(monkeypatch, killed, tmp_path):
    answering(monkeypatch, True, False, True, True, True)
    EmbeddedCluster(tmp_path, []).wait_ready(timeout_s=60)
    assert killed == []


def test_should_give_a_node_a_last_longer_time_to_answer(monkeypatch, killed, tmp_path):
    monkeypatch.setattr(broker, "answers", lambda *_, timeout_s=1.0, **__: timeout_s > 1)
    EmbeddedBroker(tmp_path / "node", []).wait_ready(timeout_s=0)
    assert killed == []


def test_should_kill_a_node_that_never_answers(monkeypatch, killed, tmp_path):
    answering(monkeypatch)
    with pytest.raises(PreflightFailed, match="did not answer"):
        EmbeddedCluster(tmp_path, []).wait_ready(timeout_s=0)
    assert killed == ["node-1"]

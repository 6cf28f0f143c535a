"""When a node, or a cluster, counts as ready; without a process, and with the answers of a busy one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.devstack import broker
from tidemark.devstack.broker import EmbeddedBroker, EmbeddedCluster
from tidemark.errors import PreflightFailed
from tidemark.kafka import cluster


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
    monkeypatch.setattr(broker, "answers", lambda *_: left.pop(0) if left else False)


def test_should_not_kill_a_node_that_is_slow_after_it_was_ready(monkeypatch, killed, tmp_path):
    answering(monkeypatch, False, True)
    EmbeddedBroker(tmp_path / "node", []).wait_ready(timeout_s=60)
    assert killed == []


def test_should_not_kill_a_node_of_a_cluster_that_is_slow_after_all_were_ready(monkeypatch, killed, tmp_path):
    answering(monkeypatch, True, False, True, True, True)
    EmbeddedCluster(tmp_path, []).wait_ready(timeout_s=60)
    assert killed == []


def test_should_give_a_node_a_last_longer_time_to_answer(monkeypatch, killed, tmp_path):
    monkeypatch.setattr(broker, "answers", lambda _address, _nodes, timeout_s, _cluster_id: timeout_s > 1)
    EmbeddedBroker(tmp_path / "node", []).wait_ready(timeout_s=0)
    assert killed == []


def test_should_kill_a_node_that_never_answers(monkeypatch, killed, tmp_path):
    answering(monkeypatch)
    with pytest.raises(PreflightFailed, match="did not answer"):
        EmbeddedCluster(tmp_path, []).wait_ready(timeout_s=0)
    assert killed == ["node-1"]


@pytest.mark.parametrize("cluster_id", ["own", "another"])
def test_should_take_only_the_broker_of_its_own_cluster_for_ready(monkeypatch, killed, tmp_path, cluster_id):
    """Another clone may have started its broker on the same port in the same second."""
    folder = tmp_path / "node"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "meta.properties").write_text("#\nversion=1\ncluster.id=own\nnode.id=1\n")
    metadata = SimpleNamespace(brokers={1: "broker"}, cluster_id=cluster_id)
    monkeypatch.setattr(cluster, "AdminClient", lambda _config: SimpleNamespace(list_topics=lambda timeout: metadata))
    if cluster_id == "own":
        EmbeddedBroker(folder, []).wait_ready(timeout_s=0)
        assert killed == []
    else:
        with pytest.raises(PreflightFailed, match="did not answer"):
            EmbeddedBroker(folder, []).wait_ready(timeout_s=0)
        assert killed == ["node"]


def test_should_not_take_a_node_for_ready_whose_process_has_ended(monkeypatch, killed, tmp_path):
    killed.append("node")
    answering(monkeypatch, True, True)
    with pytest.raises(PreflightFailed, match="did not answer"):
        EmbeddedBroker(tmp_path / "node", []).wait_ready(timeout_s=60)

"""An application runs with the printed ACLs, and names the missing one when any of them is removed."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclBindingFilter
from tests.support.counting import NO_PROBE, CountingApp, counting, outputs
from tests.support.secured import Secured, allow, binding, known_acls
from tests.support.truth.topics import read_all

from tidemark.errors import PreflightFailed
from tidemark.instance.assembly import make_instance
from tidemark.kafka import acls, offsets
from tidemark.kafka.acls import CLUSTER, Acl, least_acls
from tidemark.kafka.tools import kafka_tool
from tidemark.names import TopicPartition, endpoints_topic
from tidemark.processes import wait_until
from tidemark.settings import Settings

COUNTING = least_acls(counting("app").plan(), 1)


class Guarded:
    """An application whose input the super user writes, and whose instance runs as a user with ACLs."""

    def __init__(self, broker: Secured, folder: Path, name: str) -> None:
        self._broker, self._folder, self.name = broker, folder, name
        self.app = CountingApp(Settings.load(bootstrap_servers=broker.broker.bootstrap), broker.admin, name)
        self.acls = least_acls(self.app.plan, 1)
        self.answers_queries = False
        self.admin, self.bootstrap = broker.admin, broker.broker.bootstrap

    def allow(self, wanted: list[Acl]) -> None:
        allow(self._broker.admin, wanted)

    def deny(self, acl: Acl) -> None:
        b = binding(acl)
        taken = AclBindingFilter(
            b.restype, b.name, b.resource_pattern_type, b.principal, b.host, b.operation, b.permission_type
        )
        for future in self._broker.admin.delete_acls([taken]).values():
            assert len(future.result(60)) == 1
        assert wait_until(lambda: b not in known_acls(self._broker.admin), 60)

    def settings(self) -> Settings:
        return self._broker.settings(
            "scram", var_dir=self._folder / "var", state_dir=self._folder / "state", num_partitions=2,
            session_timeout_ms=10_000, transaction_timeout_ms=60_000, broker_timeout_ms=60_000,
            query_port=0 if self.answers_queries else -1,
        )  # fmt: skip

    def run(self) -> None:
        """One instance until all input is committed; the batches are read by the super user, not by Spark."""
        stop = threading.Event()
        timer = threading.Timer(60, stop.set)
        timer.start()
        failure: BaseException | None = None
        instance = make_instance(self.app.plan, self.settings(), 0, "counting", NO_PROBE)
        try:
            instance.run(self.app.source(self._broker.broker.bootstrap, f"{self.name}-in", stop), stop)
        except BaseException as error:
            failure = error
            raise
        finally:
            timer.cancel()
            instance.close(failure)


@pytest.fixture
def guarded(guarded_broker: Secured, tmp_path: Path, unique: Callable[[str], str]) -> Guarded:
    return Guarded(guarded_broker, tmp_path, unique("acl"))


@pytest.mark.broker
@pytest.mark.timeout(360)
def test_should_work_when_all_acls_are_granted(guarded: Guarded) -> None:
    """Covers a first run, and a run that restores the state of a lost disk."""
    guarded.allow(guarded.acls)
    guarded.app.feed(300)
    guarded.run()
    assert max_counts(guarded.app) == guarded.app.expected
    (guarded.settings().state_dir).rename(guarded.settings().state_dir.with_name("lost"))
    guarded.app.feed(100)
    guarded.run()
    assert max_counts(guarded.app) == guarded.app.expected


def max_counts(app: CountingApp) -> dict[str, int]:
    found: dict[str, int] = {}
    for (key, count), times in outputs(app).items():
        assert times == 1
        found[key] = max(found.get(key, 0), count)
    return found


@pytest.mark.broker
@pytest.mark.timeout(360)
@pytest.mark.parametrize("place", range(len(COUNTING)), ids=[str(acl).replace(" ", "-") for acl in COUNTING])
def test_should_name_a_missing_acl_at_the_start(guarded: Guarded, place: int) -> None:
    lacking = guarded.acls[place]
    assert lacking.operation == COUNTING[place].operation
    guarded.allow([acl for acl in guarded.acls if acl != lacking])
    guarded.app.feed(20)
    with pytest.raises(PreflightFailed) as refused:
        guarded.run()
    said = str(refused.value)
    assert lacking.name in said
    if lacking.operation == "Create":
        assert f"topic {lacking.name} cannot be created" in said
    elif lacking.resource == "transactional-id":
        assert f"init_transactions of {lacking.name}: " in said
    else:
        assert f"this user lacks permissions: {lacking};" in said
    assert "tidemark acls" in said


@pytest.mark.broker
@pytest.mark.timeout(360)
@pytest.mark.parametrize("lacking", [None, "Create", "Write"])
def test_queries_should_be_announced_with_their_own_and_stop_no_stream_without(
    guarded: Guarded, lacking: str | None
) -> None:
    guarded.answers_queries = True
    own = [acl for acl in least_acls(guarded.app.plan, 1, queries=True) if acl not in guarded.acls]
    assert [acl.operation for acl in own] == ["Create", "Read", "Write"]
    guarded.allow([*guarded.acls, *(acl for acl in own if acl.operation != lacking)])
    guarded.app.feed(100)
    guarded.run()
    assert max_counts(guarded.app) == guarded.app.expected
    topic = endpoints_topic(guarded.name)
    topics = guarded.admin.list_topics(timeout=60).topics
    rows = read_all(guarded.bootstrap, [topic])[topic, 0] if topic in topics else []
    # The last record withdraws the address.
    assert {row.key for row in rows} == (set() if lacking else {b"0"})
    assert lacking or (rows[0].value and rows[-1].value is None)


@pytest.mark.broker
@pytest.mark.timeout(360)
def test_should_refuse_the_next_start_when_an_acl_is_removed_later(guarded: Guarded) -> None:
    guarded.allow(guarded.acls)
    guarded.app.feed(50)
    guarded.run()
    (lost,) = [acl for acl in guarded.acls if acl.name == f"{guarded.name}-n-changelog" and acl.operation == "Read"]
    guarded.deny(lost)
    with pytest.raises(PreflightFailed, match=f"this user lacks permissions: {lost}; grant the ACLs"):
        guarded.run()


@pytest.mark.broker
@pytest.mark.timeout(240)
def test_should_describe_a_group_only_once_its_coordinator_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describing it earlier crashes the process: confluent-kafka 2.16.1 aborts (SIGABRT)."""
    codes = [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR]
    summary: list[str] = []

    def committed(*_asked: object) -> dict[TopicPartition, Any]:
        summary.append("committed")
        if len(summary) <= len(codes):
            raise KafkaException(KafkaError(codes[len(summary) - 1]))
        return {}

    def described(name: str) -> Any:
        summary.append(name)
        return SimpleNamespace(result=lambda: SimpleNamespace(authorized_operations=None))

    monkeypatch.setattr(offsets, "committed_offsets", committed)
    admin: Any = SimpleNamespace(
        describe_topics=lambda *_, **__: {},
        describe_consumer_groups=lambda groups, **_: {group: described(group) for group in groups},
    )
    plan = replace(counting("loading").plan(), subtopologies=())
    monkeypatch.setattr(acls, "least_acls", lambda *_: [acls.Acl("group", "loading", "Read")])
    acls.verify_allowed(plan, Settings(), admin)
    assert summary == ["committed", "committed", "committed", "loading"]


@pytest.mark.parametrize(
    "acl", [Acl("transactional-id", "any-0", "Write"), Acl(CLUSTER, "kafka-cluster", "Describe")], ids=str
)
def test_should_print_acls_that_kafkas_own_tool_accepts(guarded_broker: Secured, acl: Acl) -> None:
    super_user = Settings.load(bootstrap_servers=guarded_broker.broker.bootstrap)
    words = shlex.split(acl.command("User:streams", super_user.bootstrap_servers))
    code, said = kafka_tool("acls", *words[1:], settings=super_user, capture=True)
    assert code == 0, said
    assert "principal=User:streams" in said
    assert f"operation={acl.operation.upper()}" in said

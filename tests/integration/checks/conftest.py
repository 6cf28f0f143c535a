"""A broker whose log cleaner and retention run all the time, and not every 15 seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.brokers import brief

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.settings import Settings

_OVERRIDES = {
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "0",
    "log.segment.delete.delay.ms": "0",
}


@pytest.fixture(scope="package")
def eager_broker(
    mark: str, kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedBroker]:
    """One for all tests of this folder."""
    with brief(EmbeddedBroker(tmp_path_factory.mktemp("eager"), kafka_jars, overrides=_OVERRIDES)) as running:
        yield running


@pytest.fixture
def eager(eager_broker: EmbeddedBroker, tmp_path: Path) -> Settings:
    """Settings that point at it."""
    return Settings.load(
        bootstrap_servers=eager_broker.bootstrap,
        var_dir=tmp_path / "var",
        state_dir=tmp_path / "state",
        num_partitions=1,
        commit_interval_ms=100,
    )


@pytest.fixture
def eager_admin(eager: Settings) -> AdminClient:
    """An admin client of it."""
    return AdminClient({"bootstrap.servers": eager.bootstrap_servers, "log_level": 0})


AlterTopic = Callable[..., None]


@pytest.fixture
def alter_topic_of() -> Callable[[AdminClient], AlterTopic]:
    """`alter_topic_of(admin)(name, retention_ms="1000")`: as an operator would, by hand, waiting until it is shown."""

    def of(admin: AdminClient) -> AlterTopic:
        def alter(topic: str, **config: str) -> None:
            changes = [TopicChange(topic, key.replace("_", "."), "", value) for key, value in config.items()]
            apply_changes(changes, Settings.load(), admin)

        return alter

    return of


@pytest.fixture
def alter_topic(eager_admin: AdminClient, alter_topic_of: Callable[[AdminClient], AlterTopic]) -> AlterTopic:
    """The same on the eager broker."""
    return alter_topic_of(eager_admin)

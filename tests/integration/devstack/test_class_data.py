"""JVMs of brokers and of Spark map the classes that `tidemark jars` has archived."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import class_data


@pytest.mark.broker
def test_a_broker_should_map_its_archive(broker: EmbeddedBroker, kafka_jars: list[Path]) -> None:
    assert broker.identity is not None
    assert str(class_data.kafka_archive(kafka_jars)) in Path(f"/proc/{broker.identity.pid}/maps").read_text()

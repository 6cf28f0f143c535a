"""Kafka's own tools on a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import CreateTopic

from tidemark.kafka.tools import kafka_tool
from tidemark.settings import Settings


@pytest.mark.broker
def test_should_find_the_broker_of_the_settings_in_a_tool(
    settings: Settings, create_topic: CreateTopic, unique: Callable[[str], str]
) -> None:
    topic = create_topic(unique("seen"), 2)
    code, said = kafka_tool("topics", "--describe", "--topic", topic, settings=settings, capture=True)
    assert code == 0
    assert "PartitionCount: 2" in said


@pytest.mark.broker
def test_should_report_a_failed_tool_by_its_exit_code(settings: Settings, unique: Callable[[str], str]) -> None:
    code, _ = kafka_tool("topics", "--describe", "--topic", unique("none"), settings=settings, capture=True)
    assert code == 1

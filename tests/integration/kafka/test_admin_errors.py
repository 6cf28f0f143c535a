"""The error of a failed admin request: a permission is named only when the broker says that it is missing."""

from __future__ import annotations

import pytest

from tidemark.errors import PreflightFailed
from tidemark.kafka.topics import TopicSpec, create_topics, grow_topics


@pytest.mark.broker
def test_should_say_what_a_broker_refused_without_naming_a_permission(admin, settings, create_topic, unique):
    with pytest.raises(PreflightFailed, match=r"cannot be created: .*nonsense") as raised:
        create_topics(admin, [TopicSpec(unique("topic"), 1, {"nonsense": "1"})], settings)
    assert "right to" not in str(raised.value)
    name = create_topic(unique("grown"), 2)
    with pytest.raises(PreflightFailed, match="failed to add partitions") as raised:
        grow_topics(admin, [TopicSpec(name, 1, {})], settings)
    assert "right to" not in str(raised.value)

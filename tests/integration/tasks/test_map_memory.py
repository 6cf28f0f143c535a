"""SQL after a stateful node stays within its memory: a large batch is computed in parts, and too large a row is named."""

from __future__ import annotations

import threading

import pytest
from tests.integration.standby.test_standby_start import Opened
from tests.support.map_memory import limit_of

from tidemark.instance.assembly import make_instance
from tidemark.kafka.topics import ensure_user_topics
from tidemark.tasks.operators.map import MapOperator
from tidemark.topology.builder import Topology


@pytest.mark.broker
@pytest.mark.timeout(200)
def test_should_give_the_tasks_of_an_instance_the_limit_of_the_settings(settings, admin, unique):
    topology = Topology(unique("app"))
    counts = topology.stream(unique("in"), schema="id STRING", key="id").group_by_key().count(name="n", store="n")
    counts.to_stream().filter("n > 1").to(unique("out"))
    limited = settings.model_copy(update={"sql_memory_bytes": 48 << 20})
    ensure_user_topics(topology.plan(), limited, admin)
    stop = threading.Event()
    instance = make_instance(topology.plan(), limited, 0, "made", lambda _point: None)
    try:
        instance.run(Opened(stop), stop)
        (task, *_) = instance._tasks.values()
        (node,) = (each for each in task._graph._operators.values() if isinstance(each, MapOperator))
        assert limit_of(node) == "48.0 MiB"
    finally:
        instance.close(None)

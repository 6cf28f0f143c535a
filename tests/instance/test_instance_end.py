"""How an instance ends: everything is closed whatever fails."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.restore.counting import NO_PROBE, counted_plan

from tidemark.instance.instance import Instance
from tidemark.instance.state import InstanceState
from tidemark.stores.directory import FolderLock


@pytest.mark.broker
@pytest.mark.parametrize("part", ["_member", "_savepoints"])
def test_should_close_the_rest_when_a_part_cannot_be_closed(settings, admin, unique, part):
    instance = Instance(counted_plan(settings, admin, unique("app"), 0), settings, 0, "made", NO_PROBE)
    close = getattr(instance, part).close

    def closing():
        close()
        raise KafkaException(KafkaError(KafkaError._DESTROY))

    getattr(instance, part).close = closing
    instance.close(None)
    assert instance.states.state is InstanceState.ERROR, "it never ran"
    FolderLock(instance.folder).release()

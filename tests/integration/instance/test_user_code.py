"""An instance whose user code fails before any record is processed: it ends for good and names the place."""

from __future__ import annotations

import threading

import pytest
from tests.integration.instance.test_instance_ticks import Scripted, prepared

from tidemark.errors import ExitCode, UserCodeFailed
from tidemark.instance.assembly import make_instance
from tidemark.processors import Processor
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

HERE = "tests.integration.instance.test_user_code"


class NeedsAFile(Processor):
    def init(self, context):
        raise FileNotFoundError("rates.csv")

    def process(self, record):
        raise AssertionError("init has failed")


def store_that_cannot_be_opened(folder):
    raise ValueError(f"nothing to open in {folder.name}")


def processed(stream, sink):
    stream.process(f"{HERE}:NeedsAFile", emits="id STRING").to(sink)


def counted(stream, sink):
    kept = Materialized("counts", custom=f"{HERE}:store_that_cannot_be_opened")
    stream.group_by_key().count(name="n", store=kept).to(sink)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize(
    ("uses", "said"),
    [
        (processed, rf"PROCESSOR-\d+: {HERE}:NeedsAFile: init\(\) raised FileNotFoundError; "),
        (counted, rf"store counts: {HERE}:store_that_cannot_be_opened: creating it in .* raised ValueError; "),
    ],
)
def test_should_end_with_a_refusal_that_names_node_function_and_cause(settings, admin, unique, guarantee, uses, said):
    topology = Topology(unique("app"), guarantee=guarantee)
    uses(topology.stream(unique("in"), schema="id STRING", key="id"), unique("out"))
    instance = make_instance(prepared(topology, settings, admin), settings, 0, "made", lambda point: None)
    failure = None
    try:
        with pytest.raises(UserCodeFailed, match=said) as raised:
            instance.run(Scripted(lambda: None), threading.Event())
        failure = raised.value
    finally:
        instance.close(failure)
    assert failure.exit_code is ExitCode.REFUSED

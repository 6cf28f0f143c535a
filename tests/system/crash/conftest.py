"""A bench per test module, on a broker of its own, and the tally that each test is held to."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.support.brokers import brief
from tests.support.log_ends import ends_of_logs
from tests.system.crash.run import FAST_ABORT
from tests.system.crash.scenarios import Tally

from tidemark.devstack.broker import EmbeddedBroker


@pytest.fixture(scope="module")
def bench(mark, kafka_jars, spark_jars, tmp_path_factory, make_bench):
    """What the module's fixture `make_bench` makes of (bootstrap, folder)."""
    folder = tmp_path_factory.mktemp("crash")
    with brief(EmbeddedBroker(folder / "broker", kafka_jars, overrides=FAST_ABORT)) as broker:
        made = make_bench(broker.bootstrap, folder / "bench")
        yield made
        made.close()


@pytest.fixture
def tally(bench):
    """Nothing lost, doubled or wrong when the test ends; where it is not so, the ends of all logs are shown."""
    counted = Tally()
    yield counted
    bench.end_all()
    with ends_of_logs(Console(), bench.folder, lines=40):
        assert counted.exact, "\n".join([counted.line(), *counted.report])

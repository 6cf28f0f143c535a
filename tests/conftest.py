"""Fixtures for every test: a real broker that the suite starts, and topics and settings that no other test uses.

Whatever a test starts carries this session's mark in its environment, and is ended when the session ends, also when
pytest itself is killed.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import settings as hypothesis_settings
from tests.support.brokers import SINGLE_BROKER, KeptCluster, brief, delete_topics
from tests.support.cpu_report import pytest_addoption, pytest_configure
from tests.support.jvms import BRIEF
from tests.support.scheduling import (
    THREE_BROKERS,
    comes_next,
    pytest_runtest_protocol,
    pytest_xdist_make_scheduler,
    require_known,
    scope_of,
)

from tidemark import processes
from tidemark.devstack import ports
from tidemark.devstack.broker import EmbeddedBroker, EmbeddedCluster
from tidemark.kafka import jars
from tidemark.settings import Settings

__all__ = ["pytest_addoption", "pytest_configure", "pytest_runtest_protocol", "pytest_xdist_make_scheduler"]

CreateTopic = Callable[..., str]

_UNIT = Path(__file__).parent / "unit"
_MANY_TOPICS = 100

# How long an example takes says more about what else runs than about the code.
hypothesis_settings.register_profile("untimed", deadline=None)
hypothesis_settings.load_profile("untimed")
# `make unit` draws fewer examples of each kind: it is run many times a day.
hypothesis_settings.register_profile("brief", deadline=None, max_examples=20)

# pyspark takes a main module without a file, such as that of a worker of pytest-xdist, for a doctest, and exits.
if not hasattr(sys.modules["__main__"], "__file__"):
    sys.modules["__main__"].__file__ = __file__


def pytest_collection_finish() -> None:
    """Keep Python from looking through modules and tests for garbage again and again, a seventh of the time of short tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _settings_of_the_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the developer's `tidemark.toml` and a running demo from changing what a test does."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("TIDEMARK_") and n != "TIDEMARK_CACHE_DIR"]:
            patch.delenv(name)
        empty = tmp_path_factory.mktemp("settings")
        (empty / "tidemark.toml").touch()
        patch.setenv("TIDEMARK_CONFIG", str(empty / "tidemark.toml"))
        patch.setenv("TIDEMARK_VAR_DIR", str(empty / "var"))
        for name, value in BRIEF.items():
            patch.setenv(name, value)
        # Tests of queries ask for their server themselves.
        patch.setenv("TIDEMARK_QUERY_PORT", "-1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _ports_of_the_worker() -> Iterator[None]:
    """Keep two workers of pytest-xdist from one port: it is found free a moment, or the start of a JVM, before it is taken."""
    first = ports._FIRST + 1000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "_FIRST", first)
        patch.setattr(ports, "_LAST", first + 999)
        yield


@pytest.fixture(autouse=True)
def _level_of_logs() -> Iterator[None]:
    """Keep a command that a test runs in this process from making later tests' logs more talkative."""
    log = logging.getLogger("tidemark")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="session")
def mark(_settings_of_the_suite: None) -> Iterator[str]:
    """The mark of this session's processes, set in the environment that they inherit."""
    chosen = f"tests-{uuid.uuid4()}"
    # Python's own helper ignores SIGTERM for as long as this process lives. With the mark it would be waited for in vain.
    resource_tracker.ensure_running()
    with processes.guarded(chosen), pytest.MonkeyPatch.context() as patch:
        patch.setenv(processes.MARK, chosen)
        yield chosen


@pytest.fixture(scope="session")
def kafka_jars(_settings_of_the_suite: None) -> list[Path]:
    """The broker's jars."""
    return jars.ensure("kafka", Settings.load())


@pytest.fixture(scope="session")
def spark_jars(_settings_of_the_suite: None) -> list[Path]:
    """The jars of Spark's Kafka connector."""
    return jars.ensure("spark", Settings.load())


@pytest.fixture(scope="session")
def _sessions_broker() -> list[EmbeddedBroker]:
    """The session's broker, once a test has asked for it."""
    return []


@pytest.fixture(scope="session")
def broker(
    mark: str,
    kafka_jars: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
    _sessions_broker: list[EmbeddedBroker],
) -> Iterator[EmbeddedBroker]:
    """One real broker for the whole session. A test that stops a broker starts its own.

    No topic is kept for the tests of another module.
    """
    with brief(EmbeddedBroker(tmp_path_factory.mktemp("broker"), kafka_jars, overrides=SINGLE_BROKER)) as running:
        _sessions_broker.append(running)
        yield running
        _sessions_broker.clear()


@pytest.fixture(scope="module", autouse=True)
def _topics_do_not_pile_up(_sessions_broker: list[EmbeddedBroker]) -> Iterator[None]:
    """Tests make thousands of topics, and a start of an instance asks several times for all of them."""
    yield
    for running in _sessions_broker:
        delete_topics(running, more_than=_MANY_TOPICS)


@pytest.fixture(scope="session")
def _kept_cluster(mark: str, kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptCluster]:
    with KeptCluster(lambda: brief(EmbeddedCluster(tmp_path_factory.mktemp("cluster"), kafka_jars))) as kept:
        yield kept


@pytest.fixture(scope="module")
def cluster(_kept_cluster: KeptCluster, request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """Three real brokers for the modules that share them. A test that stops a node starts it again.

    Idle brokers still use a tenth of a core, so they stop when another module comes next.
    """
    yield _kept_cluster.running()
    if not comes_next(request.config, THREE_BROKERS):
        _kept_cluster.end()


@pytest.fixture(scope="session")
def admin(broker: EmbeddedBroker) -> AdminClient:
    """An admin client of the session's broker."""
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Makes names that no other test uses: `unique("pulse")` is `pulse-3f9c21ab`, the same for one test and name."""
    token = uuid.uuid4().hex[:8]
    return lambda name: f"{name}-{token}"


@pytest.fixture
def create_topic(admin: AdminClient) -> CreateTopic:
    """`create_topic(name, partitions=1, **config)` creates a topic and waits until its leaders are known.

    A dot in a config's name is written as an underscore: `cleanup_policy="compact"`.
    """

    def create(name: str, partitions: int = 1, **config: str) -> str:
        wanted = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=wanted)])[name].result(60)

        def led() -> bool:
            known = admin.list_topics(name, timeout=60).topics[name].partitions
            return len(known) == partitions and all(partition.leader >= 0 for partition in known.values())

        assert processes.wait_until(led, 60), f"no leaders for {name}"
        return name

    return create


@pytest.fixture
def settings(broker: EmbeddedBroker, tmp_path: Path) -> Settings:
    """Settings that point at the session's broker, with folders of the test's own."""
    return Settings.load(
        bootstrap_servers=broker.bootstrap,
        var_dir=tmp_path / "var",
        state_dir=tmp_path / "state",
        spark_master="local[2]",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the test files by the time that they may take, the longest first, so that no long file runs alone at the end.

    The time of a file, or of files that share something, is the sum of the time-outs that its tests are marked with. A test
    without such a mark counts as one second, or as zero if it is a unit test.
    """
    time_s: Counter[str] = Counter()
    for item in items:
        marked = item.get_closest_marker("timeout")
        if marked is not None:
            time_s[scope_of(item.nodeid)] += marked.args[0]
        elif _UNIT not in item.path.parents:
            time_s[scope_of(item.nodeid)] += 1
    items.sort(key=lambda item: -time_s[scope_of(item.nodeid)])
    require_known(items)

"""The alerts of a real Prometheus when dead letters are written, when a broker stalls, and when an instance is killed."""

from __future__ import annotations

import json
import os
import sys
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.support.brokers import brief
from tests.support.counting import PARTITIONS, counted_plan
from tests.support.prometheus import prometheus, tool

from tidemark import processes
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.processes import wait_until
from tidemark.queries.access import token_file
from tidemark.settings import Settings, project_root
from tidemark.supervision.run_file import QUERY_URL, read_run_file, run_file_path

RECORDS = 5


@pytest.fixture
def own_broker(mark, kafka_jars, tmp_path):
    tool("prometheus")
    with brief(EmbeddedBroker(tmp_path / "broker", kafka_jars)) as running:
        yield running


@pytest.fixture
def application(own_broker, tmp_path, unique):
    """The settings and the name of an application that counts by key."""
    settings = Settings.load(
        bootstrap_servers=own_broker.bootstrap, var_dir=tmp_path / "var", state_dir=tmp_path / "state", query_port=0
    )
    name = unique("alerting")
    counted_plan(settings, AdminClient({"bootstrap.servers": own_broker.bootstrap}), name, RECORDS)
    return settings, name


@pytest.fixture
def instance(application, tmp_path):
    """Its instance, in a process of its own."""
    settings, name = application
    command = [sys.executable, "-m", "tests.support.letter_instance", name]
    log = tmp_path / "instance.log"
    started = processes.start(command, log, {**os.environ, **settings.as_environment()}, project_root())
    run_file = run_file_path(settings.var_dir, name, 0)
    assert wait_until(lambda: bool((read_run_file(run_file) or {}).get(QUERY_URL)), 90), log.read_text()
    yield started
    processes.stop(started, timeout_s=0)


@pytest.fixture
def server(application, instance, tmp_path):
    """A Prometheus that scrapes the instance as the documentation says."""
    settings, name = application
    url = (read_run_file(run_file_path(settings.var_dir, name, 0)) or {})[QUERY_URL]
    folder = tmp_path / "prometheus"
    folder.mkdir()
    (token,) = json.loads(token_file(settings.var_dir, name).read_text())
    (folder / "token").write_text(token)
    # A scrape waits some seconds for a broker that stalls, and Prometheus gives it no more than the interval.
    job = {
        "job_name": "tidemark", "honor_labels": True, "scrape_interval": "5s", "scrape_timeout": "5s",
        "authorization": {"credentials_file": "token"}, "static_configs": [{"targets": [urlsplit(url).netloc]}],
    }  # fmt: skip
    with prometheus(folder, [job]) as running:
        yield running


@pytest.mark.broker
@pytest.mark.timeout(400)
def test_each_fault_should_be_an_alert(own_broker, application, instance, server):
    settings, name = application

    def all_is_well() -> bool:
        done = server.value(f'sum(tidemark_process_records_total{{application="{name}"}})')
        return done == RECORDS * PARTITIONS and server.firing() == {}

    assert wait_until(all_is_well, 120, every_s=0.5), server.ask("alerts")

    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    producer.produce(f"{name}-in", b"{broken", b"k", partition=0)
    assert producer.flush(20) == 0
    labels = server.await_alert("TidemarkDeadLetters")
    assert (labels["application"], labels["reason"]) == (name, "unparsable")

    broker = own_broker.identity.process()
    broker.suspend()
    try:
        labels = server.await_alert("TidemarkBrokerUnreachable")
        assert (labels["application"], labels["instance"]) == (name, "0")
        assert instance.is_alive()
    finally:
        broker.resume()

    instance.process().kill()
    labels = server.await_alert("TidemarkTargetDown")
    assert labels["job"] == "tidemark"

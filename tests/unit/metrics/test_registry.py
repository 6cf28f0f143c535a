"""Scrapes: the text that Prometheus reads, and what it is made of."""

from __future__ import annotations

import threading

import pytest

from tidemark.metrics import table
from tidemark.metrics.counters import Counters
from tidemark.metrics.metric import Readings
from tidemark.metrics.registry import MetricRegistry

PROCESS = {"application": "a", "instance": "0"}


def lines(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if not line.startswith("#")]


def test_a_scrape_should_have_the_names_types_and_labels_of_the_table():
    def read(readings: Readings) -> None:
        readings.add(table.PROCESS_RECORDS, 7, "0_1")
        readings.add(table.STORE_KEYS, 3, "0_1", 'odd "name"\n')
        readings.add(table.LAST_COMMIT, 1.5)

    text = MetricRegistry(PROCESS).scrape(read)
    assert sorted(lines(text)) == [
        'tidemark_last_commit_timestamp_seconds{application="a",instance="0"} 1.5',
        'tidemark_process_records_total{application="a",instance="0",task="0_1"} 7.0',
        'tidemark_store_keys{application="a",instance="0",store="odd \\"name\\"\\n",task="0_1"} 3.0',
    ]
    assert b"# TYPE tidemark_process_records_total counter" in text
    assert b"# TYPE tidemark_store_keys gauge" in text
    assert f"# HELP tidemark_store_keys {table.STORE_KEYS.meaning}".encode() in text


def test_a_scrape_should_show_only_what_it_read():
    registry = MetricRegistry(PROCESS)
    registry.scrape(lambda readings: readings.add(table.TASKS, 2))
    assert lines(registry.scrape(lambda readings: readings.add(table.REBALANCES, 1))) == [
        'tidemark_rebalances_total{application="a",instance="0"} 1.0'
    ]


def test_every_metric_should_be_written_under_its_name():
    def read(readings: Readings) -> None:
        for metric in table.METRICS:
            readings.add(metric, 1, *("x" for _ in metric.own_labels))

    names = [line.partition("{")[0].partition(" ")[0] for line in lines(MetricRegistry(PROCESS).scrape(read))]
    assert sorted(names) == sorted(metric.name for metric in table.METRICS)


def test_many_series_should_stay_apart():
    def read(readings: Readings) -> None:
        for number in range(3000):
            readings.add(table.PROCESS_RECORDS, number, f"0_{number}")

    text = MetricRegistry(PROCESS).scrape(read)
    assert len(lines(text)) == 3000
    assert b"overflow" not in text


def test_two_processes_in_one_should_not_share_metrics():
    one, other = MetricRegistry(PROCESS), MetricRegistry({**PROCESS, "instance": "1"})
    one.scrape(lambda readings: readings.add(table.TASKS, 1))
    assert lines(other.scrape(lambda readings: readings.add(table.TASKS, 2))) == [
        'tidemark_tasks{application="a",instance="1"} 2.0'
    ]


def test_wrong_labels_should_be_refused():
    with pytest.raises(ValueError):
        Readings(PROCESS).add(table.PROCESS_RECORDS, 1)
    with pytest.raises(ValueError):
        Readings(PROCESS).add(table.TASKS, 1, "0_0")


def test_counters_should_add_up_from_several_threads():
    counters = Counters()

    def count() -> None:
        for _ in range(5000):
            counters.add(table.COMMITS, 1, "batch")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    readings = Readings(PROCESS)
    counters.read(readings)
    assert readings.of(table.COMMITS) == [(20_000, {**PROCESS, "kind": "batch"})]

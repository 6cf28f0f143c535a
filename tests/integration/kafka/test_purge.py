"""Purging repartition topics and dead letters while leaders move and brokers die."""

from __future__ import annotations

import psutil
import pytest

from tidemark.clock import wall_clock_ms
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.purge import RepartitionPurge
from tidemark.names import dlq_topic
from tidemark.operations.dead_letters import replay
from tidemark.operations.dead_letters.reader import DeadLetterReader
from tidemark.processes import wait_until
from tidemark.settings import Settings

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

_RECORDS = 10


class _Plan:
    """All that purging asks of a plan."""

    def __init__(self, topic: str) -> None:
        self.repartition_topics = {topic: 1}


def test_should_purge_when_the_leader_has_moved(replicated):
    replicated.produce(_RECORDS)
    now = 0
    purge = RepartitionPurge(_Plan(replicated.name), replicated.client(), 1, lambda: now)
    beginnings = EndOffsets(replicated.client(), 60).beginnings

    def purged_to(offset):
        nonlocal now
        now += 1
        purge.run({replicated.place: offset})
        return beginnings([replicated.place])[replicated.place] == offset - 1

    replicated.await_leader(1)
    # The client knows the leader from here on.
    assert wait_until(lambda: purged_to(3), 60)
    replicated.cluster.kill_node(1)
    replicated.await_leader(2, 3)
    # Well before the client looks for leaders by itself, which it does every few minutes.
    assert wait_until(lambda: purged_to(_RECORDS), 60, 0.5)


def test_should_ask_once_for_the_first_offsets(replicated):
    replicated.produce(2)
    now, asked, admin = 0, [], replicated.client()

    class Counting:
        list_topics = admin.list_topics

        def delete_records(self, partitions, **options):
            answers = admin.delete_records(partitions, **options)
            asked.extend(answers.values())
            return answers

    purge = RepartitionPurge(_Plan(replicated.name), Counting(), 1, lambda: now)
    for _ in range(3):
        now += 1
        purge.run({replicated.place: 2})
        asked[-1].result(60)
    assert len(asked) == 1


def purge_repartition_topic(replicated):
    """Prepared beforehand: what purges everything before an offset."""
    now = 0
    purge = RepartitionPurge(_Plan(replicated.name), replicated.client(), 1, lambda: now)

    def purged(end):
        nonlocal now
        now += 1
        purge.run({replicated.place: end})

    return purged


def purge_dead_letters(replicated):
    settings = Settings.load(bootstrap_servers=replicated.cluster.bootstrap)
    letters = DeadLetterReader(replicated.name.removesuffix(dlq_topic("")), settings)
    assert letters.topic == replicated.name
    return lambda _end: replay.purge(letters, wall_clock_ms() + 60_000)


@pytest.mark.parametrize("prepare", [purge_repartition_topic, purge_dead_letters])
def test_should_keep_the_end_offset_when_all_brokers_are_killed_after_a_purge(replicated, prepare):
    cluster, place = replicated.cluster, replicated.place
    folders = [cluster.node(node).folder / "data" for node in cluster.node_ids]
    high_watermark_files = [folder / "replication-offset-checkpoint" for folder in folders]

    def high_watermarks_are(offset):
        return all(f"{replicated.name} 0 {offset}" in file.read_text().splitlines() for file in high_watermark_files)

    def leader_epochs_begin_at(offset):
        """The broker writes them after it has answered that everything before is deleted."""
        files = [folder / f"{replicated.name}-0" / "leader-epoch-checkpoint" for folder in folders]
        lines = [file.read_text().splitlines() for file in files]
        return all(len(of_node) > 2 and int(of_node[2].split()[1]) >= offset for of_node in lines)

    # Every broker knows the topic then.
    assert wait_until(lambda: high_watermarks_are(0), 60)
    purge = prepare(replicated)
    replicated.produce(_RECORDS)
    assert wait_until(lambda: high_watermarks_are(_RECORDS), 60)
    kept = {file: file.read_bytes() for file in high_watermark_files}
    replicated.produce(_RECORDS)
    purge(2 * _RECORDS)
    assert wait_until(lambda: leader_epochs_begin_at(2 * _RECORDS - 1), 60)
    # At once, without waiting for the end of one before the next.
    for node in cluster.node_ids:
        psutil.Process(cluster.node(node).identity.pid).kill()
    for node in cluster.node_ids:
        cluster.kill_node(node)
    # Brokers write their high watermarks down every five seconds: so it is when they die before the next time.
    for file, content in kept.items():
        file.write_bytes(content)
    cluster.start()
    assert EndOffsets(replicated.client(), 30.0).of([place]) == {place: 2 * _RECORDS}

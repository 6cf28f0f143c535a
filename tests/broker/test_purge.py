"""Purging repartition topics while leaders move."""

from __future__ import annotations

import pytest

from tidemark.broker.offsets import EndOffsets
from tidemark.broker.purge import RepartitionPurge
from tidemark.local.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

_RECORDS = 10


class _Plan:
    """All that purging asks of a plan."""

    def __init__(self, topic: str) -> None:
        self.repartition_topics = {topic: 1}


def test_should_purge_where_the_leader_is_now(replicated):
    replicated.produce(_RECORDS)
    now = 0
    purge = RepartitionPurge(_Plan(replicated.name), replicated.client(), 1, lambda: now)
    beginnings = EndOffsets(replicated.client(), 15.0).beginnings

    def purged_to(offset):
        nonlocal now
        now += 1
        purge.run({replicated.place: offset})
        return beginnings([replicated.place])[replicated.place] == offset - 1

    replicated.await_leader(1)
    # The client knows the leader from here on.
    assert wait_until(lambda: purged_to(3), 20)
    replicated.cluster.kill_node(1)
    replicated.await_leader(2, 3)
    # Well before the client looks for leaders by itself, which it does every few minutes.
    assert wait_until(lambda: purged_to(_RECORDS), 60, 0.5)


def test_should_ask_once_for_what_was_deleted(replicated):
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
        asked[-1].result(20)
    assert len(asked) == 1


def test_should_leave_the_end_where_it_is_when_all_brokers_are_killed(replicated):
    cluster, place = replicated.cluster, replicated.place

    def written_high_watermarks():
        files = [cluster.node(node).folder / "data" / "replication-offset-checkpoint" for node in cluster.node_ids]
        return [f"{replicated.name} 0 {_RECORDS}" in file.read_text().splitlines() for file in files]

    replicated.produce(_RECORDS)
    assert wait_until(lambda: all(written_high_watermarks()), 30)
    # What is written from here on is not in those files when the brokers die.
    replicated.produce(_RECORDS)
    times = iter((0, 1, 1))
    purge = RepartitionPurge(_Plan(replicated.name), replicated.client(), 1, lambda: next(times))
    purge.run({place: 2 * _RECORDS})
    ends = EndOffsets(replicated.client(), 15.0)
    assert wait_until(lambda: ends.beginnings([place])[place] >= 2 * _RECORDS - 1, 4, 0.05)
    for node in cluster.node_ids:
        cluster.kill_node(node)
    cluster.start()
    assert EndOffsets(replicated.client(), 30.0).of([place]) == {place: 2 * _RECORDS}

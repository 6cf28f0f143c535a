"""A running standby whose changelog is deleted, created again or truncated: it keeps its copy and says so."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import NewTopic
from tests.integration.standby.test_standby_description import TASK, copy_of, is_level, said, standing_by
from tests.support.purging import purge
from tests.support.standby import contents, count, follow_until

from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.topics import partition_counts
from tidemark.names import TaskId, TopicPartition, topology_topic
from tidemark.processes import wait_until
from tidemark.registry.reader import describe_resolved
from tidemark.registry.topic_identities import topics_in_use
from tidemark.standby.copies import StandbyCopies
from tidemark.standby.progress import useless_because
from tidemark.stores.rocksdb import RocksStore
from tidemark.supervision.local_instances import local_instances

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

OLD = {b"key %d" % number: count(number + 1) for number in range(30)}


def delete(app, topic):
    app.admin.delete_topics([topic])[topic].result(60)
    assert wait_until(lambda: topic not in partition_counts(app.admin, app.settings), 60)


def make(app, topic):
    def made():
        try:
            app.admin.create_topics([NewTopic(topic, app.partitions, 1, config={"cleanup.policy": "compact"})])[
                topic
            ].result(60)
        except Exception:  # The old one may still be on its way out.
            return False
        return True

    assert wait_until(made, 60)


def is_told_lost(app):
    summary = said(app)
    return summary.get("useful") is False and "changelog" in (summary.get("useless_because") or "")


def handed_over(app, tmp_path):
    """What an instance or a repair that asks for the copy is given."""
    source = StandbyCopies(app.settings.state_dir, app.id, answer_s=60.0)
    (copy,) = source.find([TASK])[TASK]["n"]
    source.fetch(copy, TASK, "n", tmp_path / "fetched")
    store = RocksStore(tmp_path / "fetched", write_buffer_bytes=1 << 20)
    try:
        return contents(store)
    finally:
        store.close()


@pytest.mark.parametrize("new_records", [None, 0, 5, 500], ids=["deleted", "empty", "shorter", "longer"])
def test_should_keep_its_copy_and_say_so_when_the_changelog_is_another_topic(counting, tmp_path, new_records):
    counting.commit({"n": {0: list(OLD.items()), 1: [(b"x", count(1))]}})
    changelog = counting.changelog("n")
    with standing_by(counting) as ended:
        assert wait_until(lambda: ended or is_level(counting, 0), 60)
        delete(counting, changelog.topic)
        if new_records is not None:
            make(counting, changelog.topic)
            counting.write([(b"key %d" % (n % 60), count(1000 + n)) for n in range(new_records)], changelog)
        assert wait_until(lambda: ended or is_told_lost(counting), 60), said(counting)
        assert ended == []
        summary = said(counting)
        happened = "was deleted: this lost" if new_records is None else "was deleted and created again"
        assert f"changelog {changelog.topic} {happened}" in summary["useless_because"]
        assert summary["state"] != "RUNNING"
        (row,) = local_instances(counting.settings.var_dir, time.time())
        assert (row.useful, row.useless_because) == (False, summary["useless_because"])
        assert handed_over(counting, tmp_path) == OLD
        # Also of what is written later.
        if new_records is not None:
            counting.write([(b"key 0", count(9999))] * 200, changelog)
        # Rewritten once a second, Kafka is asked every two.
        copies, since = counting.settings.state_dir / "standby-0" / counting.id / ".copies", time.time()
        assert wait_until(lambda: ended or copies.stat().st_mtime > since + 5, 60)
        assert is_told_lost(counting)
    assert ended == []
    assert copy_of(counting) == OLD


def test_should_begin_again_with_a_topic_that_the_application_has_accepted(counting):
    """A reset accepts the new topic in this way for the source topic of a table, whose name stays the same."""
    counting.commit({"n": {0: list(OLD.items()), 1: [(b"x", count(1))]}})
    changelog = counting.changelog("n")
    with standing_by(counting) as ended:
        assert wait_until(lambda: ended or is_level(counting, 0), 60)
        delete(counting, changelog.topic)
        make(counting, changelog.topic)
        counting.write([(b"new %d" % number, count(1)) for number in range(100)], changelog)
        assert wait_until(lambda: ended or is_told_lost(counting), 60), said(counting)
        uses = topics_in_use(counting.plan)
        ids = topic_ids(counting.admin, list(uses), counting.settings)
        accepted = describe_resolved(counting.plan, None, partition_counts(counting.admin, counting.settings), ids, {})
        counting.write([(b"topology", accepted.to_bytes())], TopicPartition(topology_topic(counting.id), 0))
        assert wait_until(lambda: ended or (is_level(counting, 0) and said(counting)["useful"]), 60), said(counting)
        assert ended == []
    assert ended == []
    assert copy_of(counting) == counting.fold("n") == {b"new %d" % number: count(1) for number in range(100)}


@pytest.mark.parametrize("cut_off", [20, 40], ids=["behind the copy", "beyond the copy"])
def test_should_neither_follow_nor_build_a_fragment_of_a_compacted_changelog(counting, standby, cut_off):
    counting.commit({"n": {0: list(OLD.items()), 1: [(b"x", count(1))]}})
    first = standby(counting)
    counting.follow(first)
    first.end()
    counting.commit({"n": {0: [(b"later %d" % number, count(1)) for number in range(30)]}})
    whole = counting.fold("n")
    purge(counting.admin, counting.settings, {counting.changelog("n"): cut_off})
    again, fresh = standby(counting), standby(counting, number=1)
    store, new = (follower.store(TASK, "n") for follower in (again, fresh))
    is_whole = cut_off <= store.next_offset
    if is_whole:
        counting.follow(again)
    else:
        again.step()
    assert (store.fault is None) is is_whole
    assert contents(store._store) == (whole if is_whole else OLD)
    fresh.step()
    assert "has lost its beginning, up to offset" in new.fault
    assert (contents(new._store), new.holds_something) == ({}, False)
    assert useless_because(fresh.stores, None, 0, 0) is not None
    # Its other task follows on.
    other = fresh.store(TaskId(0, 1), "n")
    follow_until(fresh, lambda: other.lag_offsets == 0)
    assert (other.fault, contents(other._store)) == (None, {b"x": count(1)})
    # What it holds is there once it has ended, too.
    again.end()
    if not is_whole:
        assert copy_of(counting) == OLD
        third = standby(counting)
        assert third.store(TASK, "n").fault is not None
        assert third.store(TASK, "n").holds_something
        assert contents(third.store(TASK, "n")._store) == OLD

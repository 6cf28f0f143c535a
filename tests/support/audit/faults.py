"""Faults planted for real, each with the expectation that must catch it; docs/audit.md shows the table.

Two kinds: a fault in the code path changes what one batch of an instance sends (`tampering`), and a foreign writer puts
records into the topics behind its back.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from confluent_kafka import Producer
from tests.support.audit.application import GRACE_MS, LEAST, MOST, PaymentsApp, at_least_once, payments
from tests.support.audit.tampering import (
    Change,
    Messages,
    bytes_changed,
    doubled,
    dropped,
    json_changed,
    lost,
    moved,
    node_times_moved,
    one_for_another,
    record_changed,
    tampering,
    time_moved,
    tombstone_lost,
)
from tests.support.truth.topics import Row, read_all

from tidemark.commit.producer import BatchProducer
from tidemark.commit.record import CommitRecord
from tidemark.kafka.partitioner import partitions_of
from tidemark.names import changelog_topic, commits_topic, dlq_topic
from tidemark.stores.protocol import WHOLE, Writes
from tidemark.stores.rocksdb import opened
from tidemark.topology.builder import Topology


class Crash(Exception):
    """Simulates the death of the process at this point."""


@dataclass(frozen=True)
class Fault:
    """`plant` runs the application with the fault in it; `caught_by` is the expectation that must fail.

    With `then`, an audit passes after `plant`, and `then` brings the fault that the next one must find.
    That of a contract begins with its topic, and `{app}` in it is the application's name.
    """

    name: str
    caught_by: str
    plant: Callable[[PaymentsApp], None]
    topology: Callable[[str], Topology] = payments
    then: Callable[[PaymentsApp], None] | None = None

    def is_caught(self, app: str, complaints: Collection[str]) -> bool:
        """Whether the expectation is among those that failed for an application of that name."""
        return self.caught_by.format(app=app) in complaints


def _in_code(
    suffix: str, change: Change, *, more: Callable[[str], str] | None = None, records: int = 450
) -> Callable[[PaymentsApp], None]:
    def plant(app: PaymentsApp) -> None:
        app.feed(records)
        topic = more(app.name) if more else f"{app.name}-{suffix}"
        with tampering(topic, change):
            app.run()

    return plant


def _of_changelog(store: str) -> Callable[[str], str]:
    return lambda name: changelog_topic(name, store)


def _behind_the_commits_back(store: str, change: Change) -> Callable[[PaymentsApp], None]:
    """Records of a changelog are lost although it grows by as much: the commit itself looks at its growth."""

    def plant(app: PaymentsApp) -> None:
        app.feed(450)
        topic = changelog_topic(app.name, store)
        foreign = _transactional(app)

        def grow(partition: int) -> None:
            foreign.begin_transaction()
            foreign.produce(topic, b"", b"foreign", partition)
            foreign.flush(60)
            foreign.abort_transaction(60)

        with tampering(topic, change, also=grow):
            app.run()

    return plant


def _transactional(app: PaymentsApp) -> Producer:
    """Of somebody else."""
    producer = Producer(
        {
            "bootstrap.servers": app.settings.bootstrap_servers,
            "transactional.id": f"{app.name}-foreign",
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(60)
    return producer


def _letter_dropped(app: PaymentsApp) -> None:
    app.feed(450)
    dropped = []
    send_one = BatchProducer.send_one

    def tampered(self: BatchProducer, topic: str, *rest: Any) -> None:
        if not dropped:
            dropped.append(topic)
            return
        send_one(self, topic, *rest)

    with mock.patch.object(BatchProducer, "send_one", tampered):
        app.run()
    assert dropped == [dlq_topic(app.name)]


def _letter_again(app: PaymentsApp) -> None:
    app.feed(450)
    app.run()
    letter = _rows(app, dlq_topic(app.name))[0]
    _write(app, [letter])
    _one_more_batch(app)


def _batch_again(app: PaymentsApp) -> None:
    """What a batch sent is sent once more: outputs and changelog."""
    app.feed(450)
    app.run()
    record = next(r for r in _records(app) if r.kind == "batch")
    again = [row for topic in (*record.sinks, *record.changelogs) for row in _rows(app, topic)[:20]]
    _write(app, again)
    _one_more_batch(app)


def _output_again(app: PaymentsApp) -> None:
    """An output is written once more while the stream is idle."""
    _write(app, _rows(app, f"{app.name}-totals")[-1:])
    _one_more_batch(app)


def _wrong_partition(app: PaymentsApp) -> None:
    app.feed(450)

    send_many = BatchProducer.send_many

    def tampered(
        self: BatchProducer, to: str, messages: Sequence[dict[str, Any]], partition: int | None = None
    ) -> None:
        send_many(self, to, messages, 1 if to == f"{app.name}-minutes" else partition)

    with mock.patch.object(BatchProducer, "send_many", tampered):
        app.run()


def _hanging(app: PaymentsApp) -> None:
    """A transaction of somebody else that neither commits nor aborts; the caller's session ends it."""
    app.feed(450)
    app.run()
    producer = _transactional(app)
    producer.begin_transaction()
    producer.produce(f"{app.name}-totals", b"{}", b"k000")
    producer.flush(60)
    app.open_transactions.append(producer)


def _final_again(app: PaymentsApp) -> None:
    app.feed(450)
    app.run()
    _write(app, [_rows(app, f"{app.name}-finals")[0]])
    _one_more_batch(app)


def _final_of_open_window(app: PaymentsApp) -> None:
    """A final that comes before its window closes."""
    app.feed(450)
    app.run()
    last = max((json.loads(row.value or b"{}") for row in _rows(app, f"{app.name}-minutes")), key=_window)
    assert last["window_end"] + GRACE_MS > app.now_ms
    key = last["id"].encode()
    _produce(app, f"{app.name}-finals", key, json.dumps(last).encode())
    _one_more_batch(app)


def _update_lost_in_another(app: PaymentsApp) -> None:
    """An output of one key is written under another key of the same task: counts stay what they are."""
    app.feed(450)

    def changed(messages: Messages) -> Messages:
        if len(messages) < 2:
            return messages
        body = {**json.loads(messages[0]["value"]), "id": json.loads(messages[1]["value"])["id"]}
        value = json.dumps(body, separators=(",", ":")).encode()
        return [{"key": messages[1]["key"], "value": value}, *messages[1:]]

    with tampering(f"{app.name}-totals", changed):
        app.run()


def _by_another_partitioner(app: PaymentsApp) -> None:
    """A producer of the source places records by another hash; what is wrong then is not the application's."""
    app.partitioner = "consistent"
    app.feed(450)
    app.run()


def _store_drifted(app: PaymentsApp) -> None:
    """One value of a store is changed on disk, before a savepoint is taken of it."""
    app.feed(450)
    app.run()
    folder = app.state / "0_0" / "rocksdb" / "totals"
    with opened(folder) as store:
        key, value = next(store.items(WHOLE))
        checkpoint = store.checkpoint
        assert checkpoint is not None
        store.put_many([Writes(WHOLE, [key], [value[:-1] + bytes([value[-1] ^ 1])])], checkpoint, None)
    app.savepoint()


def _foreign(app: PaymentsApp) -> None:
    """A writer that is not the application takes a key's count back."""
    app.feed(450)
    app.run()
    row = next(row for row in _rows(app, f"{app.name}-totals") if row.value)
    _write(app, [row])
    _one_more_batch(app)


def _weak_crash(app: PaymentsApp) -> None:
    """The application runs at_least_once and dies before its offsets; it is audited as exactly_once."""
    app.feed(450)
    passed = [0]

    def probe(point: str) -> None:
        # Behind this point everything of the batch has been acknowledged.
        passed[0] += point == "4-commit-records"
        if passed[0] == 3:
            raise Crash

    with contextlib.suppress(Crash):
        app.run(probe)
    app.run()


def _filtered_unseen(app: PaymentsApp) -> None:
    """Records are read and thrown away without a word."""
    app.feed(450)
    with tampering(commits_topic(app.name), record_changed(filtered_rows=lambda r: r.filtered_rows + 1)):
        app.run()


def _source_record(cents: int | None) -> Callable[[PaymentsApp], None]:
    """A producer of the source breaks its contract; what the application makes of the record is right."""

    def plant(app: PaymentsApp) -> None:
        app.feed(450)
        _produce(app, f"{app.name}-in", b"k000", json.dumps({"id": "k000", "at": app.now_ms, "cents": cents}).encode())
        app.run()

    return plant


def _rows(app: PaymentsApp, topic: str) -> list[Row]:
    read = read_all(app.settings.bootstrap_servers, [topic])
    return [row for rows in read.values() for row in rows]


def _records(app: PaymentsApp) -> list[CommitRecord]:
    return [CommitRecord.from_bytes(row.value or b"") for row in _rows(app, commits_topic(app.name))]


def _window(body: dict[str, Any]) -> int:
    return int(body["window_end"])


def _write(app: PaymentsApp, rows: Sequence[Row]) -> None:
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers})
    for row in rows:
        producer.produce(row.topic, row.value, row.key, row.partition, headers=list(row.headers))
    assert producer.flush(60) == 0


def _produce(app: PaymentsApp, topic: str, key: bytes, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": app.settings.bootstrap_servers})
    producer.produce(topic, value, key, int(partitions_of([key], 2)[0]))
    assert producer.flush(60) == 0


def _one_more_batch(app: PaymentsApp) -> None:
    """So that what was written before lies in a batch of the cut."""
    app.feed(150)
    app.run()


FAULTS: tuple[Fault, ...] = (
    Fault("an output doubled", "outputs_are_not_doubled", _in_code("totals", doubled)),
    Fault("an output copied between two audits", "outputs_are_not_doubled", _one_more_batch, then=_output_again),
    Fault("an output lost", "outputs_are_not_lost", _in_code("minutes", lost)),
    Fault("an output lost and another doubled", "no_update_comes_twice", _in_code("totals", one_for_another)),
    Fault("a wrong count in an output", "every_update_has_its_value", _in_code("minutes", json_changed("cents", 1))),
    Fault(
        "a wrong end of a window in an output",
        "every_update_is_there",
        _in_code("minutes", json_changed("window_end", 1)),
    ),
    Fault("a wrong mean in an output", "the_last_value_is_the_truth", _in_code("totals", json_changed("mean", 3))),
    Fault(
        "a changelog record doubled", "changelogs_are_not_doubled", _in_code("", doubled, more=_of_changelog("totals"))
    ),
    Fault("a changelog record lost", "changelogs_are_not_lost", _behind_the_commits_back("minutes", lost)),
    Fault(
        "a wrong value in a changelog",
        "the_last_value_is_the_truth",
        _in_code("", bytes_changed, more=_of_changelog("totals")),
    ),
    Fault(
        "a tombstone missing in a changelog",
        "changelogs_are_not_lost",
        _behind_the_commits_back("open", tombstone_lost),
    ),
    Fault("a store that drifted from its changelog", "a_savepoint_is_the_changelog_folded", _store_drifted),
    Fault("a batch emitted twice", "no_update_comes_twice", _batch_again),
    Fault("a gap between two ranges", "ranges_leave_no_gap", _in_code("", moved(1, 0), more=commits_topic)),
    Fault("an overlap of two ranges", "ranges_do_not_overlap", _in_code("", moved(-1, 0), more=commits_topic)),
    Fault(
        "a commit record missing",
        "batches_are_numbered_without_gap",
        _in_code("", dropped, more=commits_topic, records=1500),
    ),
    Fault("a transaction left open", "no_transaction_hangs", _hanging),
    Fault("at_least_once with a crash, sold as exactly_once", "ranges_do_not_overlap", _weak_crash, at_least_once),
    Fault("a dead letter dropped", "dead_letters_are_not_lost", _letter_dropped),
    Fault("a dead letter written twice", "dead_letters_are_not_doubled", _letter_again),
    Fault(
        "a clock an hour ahead moves stream time",
        "stream_time_is_that_of_the_records",
        _in_code("", record_changed(stream_times=lambda r: time_moved(r, 3_600_000)), more=commits_topic),
    ),
    Fault(
        "a clock an hour ahead moves the stream time of the nodes",
        "stream_time_is_that_of_the_records",
        _in_code("", record_changed(stream_times=lambda r: node_times_moved(r, 3_600_000)), more=commits_topic),
    ),
    Fault(
        "a stream time that goes back",
        "stream_time_never_goes_back",
        _in_code("", record_changed(stream_times=lambda r: time_moved(r, -3_600_000)), more=commits_topic),
    ),
    Fault(
        "the clock of an instance set back",
        "commits_follow_the_clock",
        _in_code("", record_changed(commit_time_ms=lambda r: r.commit_time_ms - 3_600_000), more=commits_topic),
    ),
    Fault("a final emitted twice", "one_final_per_window_and_key", _final_again),
    Fault("a final before its window closes", "one_final_per_window_and_key", _final_of_open_window),
    Fault("a final lost", "finals_are_there_with_their_value", _in_code("finals", lost)),
    Fault("an output under another key", "every_update_is_there", _update_lost_in_another),
    Fault("a producer with another partitioner", "sources_are_partitioned_by_key", _by_another_partitioner),
    Fault("a key in the wrong partition", "records_are_in_the_partition_of_their_key", _wrong_partition),
    Fault("a foreign writer takes a count back", "updates_never_go_back", _foreign),
    Fault("records filtered out that were not", "every_record_is_accounted_for", _filtered_unseen),
    Fault(
        "records dropped as late that were not",
        "late_records_are_accounted_for",
        _in_code("", record_changed(late_rows=lambda r: r.late_rows + 2), more=commits_topic),
    ),
    Fault(
        "a source's record out of its contract's range",
        f"{{app}}-in: cents is at least {LEAST} and at most {MOST}",
        _source_record(MOST + 1),
    ),
    Fault("a null in a source, against its contract", "{app}-in: cents is not null", _source_record(None)),
    Fault(
        "an output out of its contract's range",
        f"{{app}}-totals: top is at least 0 and at most {MOST}",
        _in_code("totals", json_changed("top", -MOST - 1)),
    ),
)

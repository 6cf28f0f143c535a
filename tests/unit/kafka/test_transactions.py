"""What a transaction that holds readers back is, from what Kafka's tools print about it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tidemark.errors import OutcomeUnknown
from tidemark.kafka import transactions
from tidemark.kafka.transactions import left_by_aborted, open_transactions
from tidemark.names import TopicPartition
from tidemark.settings import Settings

PLACE = TopicPartition("out", 1)
NOW = 1_000_000


class Ends:
    """Offsets of one partition. From the `moves_at`-th question on, nothing is open in it any more."""

    def __init__(self, moves_at: int) -> None:
        self._asked, self._moves_at = 0, moves_at

    def stable(self, places: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._asked += 1
        return dict.fromkeys(places, 15 if self._asked >= self._moves_at else 10)

    def of(self, places: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(places, 15)


def seen(monkeypatch, *, state, duration_ms, age_ms, moves_at=1_000):
    """What is found of a transaction, whose producer has written its last record to the partition `age_ms` ago."""
    printed = {
        "describe-producers": f"ProducerId\tLastTimestamp\tCurrentTransactionStartOffset\n4\t{NOW - age_ms}\t10\n",
        "list": "TransactionalId\tProducerId\nstream-0\t4\n",
        "describe": f"TransactionState\tTransactionDurationMs\tTransactionTimeoutMs\n{state}\t{duration_ms}\t60000\n",
    }
    monkeypatch.setattr(transactions, "kafka_tool", lambda _name, what, *_, **__: (0, printed[what]))
    (found,) = open_transactions(Ends(moves_at), [PLACE], NOW, Settings.load(commit_interval_ms=1))
    return found


@pytest.mark.parametrize(
    ("state", "duration_ms", "age_ms", "open_ms", "is_hanging"),
    [
        ("Ongoing", "300", 200, 300, False),
        # It has begun long before its last record.
        ("Ongoing", "50000", 200, 50_000, False),
        # The transaction that is open now cannot have written a record of a minute ago.
        ("Ongoing", "300", 60_000, 60_000, True),
        ("CompleteCommit", "None", 60_000, 60_000, True),
        ("CompleteAbort", "None", 5, 5, True),
        ("Empty", "None", 5, 5, True),
        ("PrepareCommit", "None", 60_000, None, False),
    ],
)
def test_should_find_a_transaction_that_its_coordinator_has_ended_hanging(
    monkeypatch, state, duration_ms, age_ms, open_ms, is_hanging
):
    found = seen(monkeypatch, state=state, duration_ms=duration_ms, age_ms=age_ms)
    assert (found.transactional_id, found.stable_offset, found.end_offset) == ("stream-0", 10, 15)
    assert (found.open_ms, found.is_hanging) == (open_ms, is_hanging)
    assert (open_ms is None) == ("the state PrepareCommit" in found.why)


def test_should_not_find_a_transaction_hanging_that_ends_while_it_is_examined(monkeypatch):
    # The stable offset is read eleven times before the tools are asked.
    found = seen(monkeypatch, state="CompleteCommit", duration_ms="None", age_ms=5, moves_at=12)
    assert (found.open_ms, found.is_hanging) == (None, False)
    assert "ended while it was examined" in found.why


OTHER = TopicPartition("out", 2)


def left(monkeypatch, listed, described="", partitions="", away=(OTHER,)):
    """The result of `left_by_aborted` for `stream-0`, if the tool lists it in the state `listed`. `PLACE` has a leader."""
    names = "TransactionalId\tTransactionState"
    printed = {
        "list": f"{names}\nother-0\tOngoing\n" + (f"stream-0\t{listed}\n" if listed else ""),
        "describe": f"{names}\tTopicPartitions\nstream-0\t{described or listed}\t{partitions}\n",
    }
    monkeypatch.setattr(transactions, "kafka_tool", lambda _name, what, *_, **__: (0, printed[what]))
    return left_by_aborted("stream-0", [PLACE], away, Settings.load())


def test_should_leave_an_ongoing_transaction_to_init_where_there_is_a_leader(monkeypatch):
    assert left(monkeypatch, "Ongoing", away=()) == []
    assert left(monkeypatch, "Ongoing", partitions="out-1,in-2") == []
    assert left(monkeypatch, "Ongoing", partitions="out-1,out-2") == [OTHER]


@pytest.mark.parametrize("state", ["PrepareAbort", "PrepareEpochFence", "CompleteAbort"])
def test_should_suspect_all_partitions_of_an_aborted_transaction_which_no_longer_names_all(monkeypatch, state):
    assert left(monkeypatch, state, partitions="in-2") == [OTHER, PLACE]
    assert left(monkeypatch, "Ongoing", state) == [OTHER, PLACE]


@pytest.mark.parametrize("state", ["", "PrepareCommit", "CompleteCommit"])
def test_should_suspect_nothing_after_a_commit_or_without_a_transaction(monkeypatch, state):
    assert left(monkeypatch, state) == []


def test_should_suspect_nothing_of_a_transaction_that_is_committed_while_it_is_examined(monkeypatch):
    assert left(monkeypatch, "Ongoing", "CompleteCommit") == []


@pytest.mark.parametrize("state", ["Empty", "Dead"])
def test_should_not_know_what_a_coordinator_has_forgotten(monkeypatch, state):
    assert left(monkeypatch, state) is None


def test_should_name_the_partitions_that_may_be_open_when_the_tool_fails(monkeypatch):
    monkeypatch.setattr(transactions, "kafka_tool", lambda *_, **__: (1, ""))
    with pytest.raises(OutcomeUnknown, match=r"may still be open in out\[1\]"):
        left_by_aborted("stream-0", [PLACE], [], Settings.load())

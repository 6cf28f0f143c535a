"""A query about a group is retried while its coordinator moves, and for no other reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.errors import OutcomeUnknown
from tidemark.kafka.offsets import retry_until_stable

MOVES = KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
DENIED = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))


def asking(*answers):
    """Give or raise one after the other."""
    left = iter(answers)

    def ask():
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask, left


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that only advances while the code sleeps."""
    now = [0.0]
    # Of the library that retries alone, as other threads of this process sleep, too.
    monkeypatch.setattr("tenacity.time", SimpleNamespace(monotonic=lambda: now[0]))
    slept = SimpleNamespace(sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("tenacity.nap.time", slept)
    return now


def test_should_retry_until_the_coordinator_answers(clock):
    ask, _ = asking(MOVES, MOVES, 7)
    assert retry_until_stable(ask, "app", 20) == 7
    assert clock == [pytest.approx(0.2)]


def test_should_report_any_other_error_at_once(clock):
    ask, left = asking(MOVES, DENIED, 7)
    with pytest.raises(OutcomeUnknown, match=r"failed to read group app: .*uthorization") as unknown:
        retry_until_stable(ask, "app", 20)
    assert unknown.value.__cause__ is DENIED
    assert list(left) == [7]


def test_should_give_up_after_its_timeout(clock):
    ask, left = asking(*[MOVES] * 100)
    with pytest.raises(OutcomeUnknown, match="failed to read group app"):
        retry_until_stable(ask, "app", 1.0)
    assert 1.0 <= clock[0] < 1.2
    assert len(list(left)) > 80

"""Requests that are repeated while Kafka moves: a leader, a group's coordinator, or the controller."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed
from tenacity.nap import sleep

from tidemark.errors import OutcomeUnknown

_RETRY_S = 0.1
_ATTEMPTS, _ATTEMPT_S = 5, 1.0
_ANY_TOPIC = "__consumer_offsets"
_UNANSWERED = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})
"""No broker was reached, or it ended before it answered."""

T = TypeVar("T")


def attempt_s(timeout_s: float) -> float:
    """Return the seconds that one attempt gets: a fifth of the time-out, but at least a second.

    A client that asks a broker that has gone waits for all of it.
    """
    return min(timeout_s, max(_ATTEMPT_S, timeout_s / _ATTEMPTS))


def retrying(codes: Collection[int], timeout_s: float, pause: Callable[[float], None] = sleep) -> Retrying:
    """Return a caller that repeats a call while it raises a `KafkaException` with one of the codes.

    `pause` is called with the seconds to wait before each repetition.
    """
    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, KafkaException) and error.args[0].code() in codes),
        stop=stop_after_delay(timeout_s),
        wait=wait_fixed(_RETRY_S),
        sleep=pause,
        reraise=True,
    )


def retrying_with_fresh_metadata(codes: Collection[int], admin: AdminClient, timeout_s: float) -> Retrying:
    """Return a caller as `retrying` does, which also asks for the leaders and the controller before each repetition."""

    def pause(seconds: float) -> None:
        # They have just moved or been elected; or they are gone, and the client still asks them.
        sleep(seconds)
        refresh_metadata(admin, attempt_s(timeout_s))

    return retrying(codes, timeout_s, pause)


def refresh_metadata(admin: AdminClient, timeout_s: float) -> None:
    """Refresh the client's metadata, which the admin client itself does only every few minutes. Blocks; never raises."""
    with contextlib.suppress(KafkaException):  # The next request reports what is wrong.
        admin.list_topics(timeout=timeout_s)


def ask_controller(admin: AdminClient, timeout_s: float, ask: Callable[[float], T]) -> T:
    """Return the result of `ask`, which is given the seconds for one attempt and may only read. Blocks.

    Kafka names any broker as the controller, also one that has just gone, and the client waits for that one until its metadata
    is refreshed. Each attempt gets twice the time of the one before, for brokers that are slow. Raises `KafkaException`, with
    `_TIMED_OUT` if no attempt was answered within `timeout_s`.
    """
    ends_s = time.monotonic() + timeout_s
    longest_s = attempt_s(timeout_s)

    def attempt() -> T:
        nonlocal longest_s
        seconds = max(_RETRY_S, min(longest_s, ends_s - time.monotonic()))
        longest_s *= 2
        return ask(seconds)

    return retrying_with_fresh_metadata(_UNANSWERED, admin, timeout_s)(attempt)


def find_controller(admin: AdminClient, timeout_s: float) -> None:
    """Wait until a controller answers. To be called before a request that changes something. Blocks.

    Such a request must not be repeated when it has timed out: whether it was done is not known. Raises `OutcomeUnknown` if
    none has answered within `timeout_s`.
    """

    def ask(seconds: float) -> None:
        admin.describe_topics(TopicCollection([_ANY_TOPIC]), request_timeout=seconds)[_ANY_TOPIC].result()

    try:
        ask_controller(admin, timeout_s, ask)
    except KafkaException as error:
        # Any answer will do, also that the topic does not exist or may not be seen.
        if error.args[0].code() in _UNANSWERED:
            raise OutcomeUnknown(
                f"no broker answers as the controller within {timeout_s:.0f} s, and nothing was changed; look at the brokers' "
                f"logs, then try again: {error.args[0].str()}"
            ) from error

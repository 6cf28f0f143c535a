"""Dead letters fit into their topic, and records that are too large for a topic are found before they are sent."""

from __future__ import annotations

import pytest
from tests.support.dead_letters import LIMIT

from tidemark.commit.dead_letter import dead_letter_record
from tidemark.kafka.record_sizes import SizeLimits, limit_of, record_bytes
from tidemark.tasks.update import DeadLetter


def a_letter(value=b"{", key=b"k", headers=(("own", b"h"),), **more):
    return DeadLetter("unparsable", "in", 3, 17, key, value, headers, **more)


def sent(letter, limit=LIMIT):
    key, value, headers = dead_letter_record(letter, limit)
    assert record_bytes(key, value, headers) <= limit
    return key, value, dict(headers)


TOLD = {"tidemark.reason": b"unparsable", "tidemark.topic": b"in", "tidemark.partition": b"3", "tidemark.offset": b"17"}


def test_should_keep_a_dead_letter_that_fits_unchanged():
    assert sent(a_letter(timestamp_ms=5)) == (b"k", b"{", {"own": b"h", **TOLD, "tidemark.timestamp": b"5"})
    assert sent(a_letter(None))[1] is None


@pytest.mark.parametrize("more", [-1, 0, 1, 1_000_000])
def test_should_shorten_the_value_when_the_topic_takes_no_more(more):
    whole = LIMIT - record_bytes(b"k", b"", dead_letter_record(a_letter(b""), LIMIT)[2])
    value = bytes(range(256)) * 5000
    value = value[: whole + more]
    key, kept, headers = sent(a_letter(value))
    assert (key, headers["own"]) == (b"k", b"h")
    assert value.startswith(kept)
    if more <= 0:
        assert (kept, headers.keys() & {"tidemark.shortened", "tidemark.value.bytes"}) == (value, set())
    else:
        assert len(kept) > LIMIT * 0.9
        assert (headers["tidemark.shortened"], headers["tidemark.value.bytes"]) == (b"value", b"%d" % len(value))


def test_should_drop_the_records_own_headers_when_they_alone_are_too_large():
    key, value, headers = sent(a_letter(b"v" * 9, headers=(("own", b"h" * LIMIT), ("more", None))))
    assert (key, value, "own" in headers) == (b"k", b"v" * 9, False)
    assert headers["tidemark.shortened"] == b"value,headers"
    assert (headers["tidemark.headers.count"], headers["tidemark.value.bytes"]) == (b"2", b"9")


def test_should_shorten_the_key_as_the_last_resort():
    key, value, headers = sent(a_letter(b"v" * 9, key=b"k" * LIMIT))
    assert (key, value) == (b"k" * 1024, b"v" * 9)
    assert (headers["tidemark.key.bytes"], headers["tidemark.shortened"]) == (b"%d" % LIMIT, b"value,headers,key")


def test_should_find_the_records_that_a_topic_refuses():
    limits = SizeLimits({"small": 1000})
    fits = 1000 - record_bytes(b"key", b"")
    messages = [{"key": b"key", "value": b"v" * size} for size in (fits - 1, fits, fits + 1)] + [
        {"key": None, "value": None}
    ]
    assert limits.oversized("small", messages) == [2]
    assert limits.oversized("other", messages) == []
    assert limits.oversized("small", [{"key": b"key", "value": b"", "headers": [("h", b"x" * fits)]}]) == [0]


def test_should_leave_room_when_the_topic_sets_its_own_compression():
    assert limit_of({"max.message.bytes": "256000", "compression.type": "producer"}) == 256_000
    assert limit_of({"max.message.bytes": "256000", "compression.type": "gzip"}) == 255_000

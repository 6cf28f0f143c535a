"""The verdicts on skew, at the borders."""

from __future__ import annotations

import re

import pytest

from tidemark.checks.skew import SkewRules, sample_of, shown_key, store_finding, topic_finding
from tidemark.checks.skew_sampling import key_as_text
from tidemark.cli import main
from tidemark.redaction import redacted
from tidemark.topology.key_serde import KeySerde
from tidemark.verdict import Finding, Verdict

RULES = SkewRules(least_records=100, ratio=2.0, least_key_share=0.05, named_keys=3)
OK, WARNING, UNKNOWN = Verdict.OK, Verdict.WARNING, Verdict.NOT_ENOUGH_EVIDENCE


def judged(*partitions: tuple[int, dict[bytes | None, int]]) -> Finding:
    """The finding of a topic with these partitions: the offsets that it holds, and the keys that were read."""
    samples = [
        sample_of(number, held, [key for key, count in keys.items() for _ in range(count)], RULES)
        for number, (held, keys) in enumerate(partitions)
    ]
    return topic_finding("pulses", samples, RULES)


def even(number: int, records: int = 100) -> dict[bytes | None, int]:
    return {f"{number}-{key}".encode(): records // 50 for key in range(50)}


def test_even_partitions_and_keys_should_be_ok() -> None:
    found = judged(*((1_000, even(n)) for n in range(4)))
    assert found.verdict is OK
    assert found.message == "4 partitions with 25% to 25% of the offsets; key '0-0' has 0% of the newest 400 records"
    assert found.evidence["partitions"]["2"] == {"held_offsets": 1_000, "share": 0.25, "read_records": 100, "keys": 50}


@pytest.mark.parametrize(
    ("serde", "key", "text"),
    [
        (KeySerde.STRING, b"p1", b"p1"),
        (KeySerde.STRING, b"\xff", b"\xff"),
        (KeySerde.LONG, b"\xff" * 7 + b"\xfd", b"-3"),
        (KeySerde.LONG, b"7", b"7"),
        (KeySerde.BYTES, b"\0\xff", b"00ff"),
    ],
)
def test_keys_should_be_named_by_their_text(serde: KeySerde, key: bytes, text: bytes) -> None:
    assert key_as_text(serde, key) == text


@pytest.mark.parametrize(("records", "verdict"), [(99, UNKNOWN), (100, OK)])
def test_few_records_should_be_too_little_evidence(records: int, verdict: Verdict) -> None:
    keys: dict[bytes | None, int] = {b"%d" % n: 1 for n in range(records - 50)}
    assert judged((1_000, even(0, 50)), (1_000, keys)).verdict is verdict


@pytest.mark.parametrize(("held", "verdict"), [(2_999, OK), (3_000, WARNING)])
def test_a_partition_with_twice_its_share_should_be_a_warning(held: int, verdict: Verdict) -> None:
    # With 3 000 of 6 000 the first of four partitions has twice a quarter.
    found = judged((held, even(0)), *((1_000, even(n)) for n in range(1, 4)))
    assert found.verdict is verdict
    assert ("partition 0 has 50%, and no single key explains that" in found.message) is (verdict is WARNING)


@pytest.mark.parametrize(("count", "verdict"), [(99, OK), (100, WARNING)])
def test_a_key_that_fills_more_than_an_even_partition_should_be_named(count: int, verdict: Verdict) -> None:
    # All of one of four even partitions is a quarter of the topic.
    found = judged((1_000, {b"p-17": count, b"other": 100 - count}), *((1_000, even(n)) for n in range(1, 4)))
    assert found.verdict is verdict
    if verdict is WARNING:
        assert "key 'p-17' has 25% of the newest 400 records, more than an even partition" in found.message
        assert "aggregate in two steps" in found.message
        assert found.evidence["frequent_keys"]["p-17"] == 0.25


@pytest.mark.parametrize(
    ("partitions", "said"),
    [
        (
            [(1_000, {b"p-17": 100})] + [(1_000, even(n)) for n in range(1, 4)],
            "one key (`tidemark check skew NAME` names it)",
        ),
        ([(1_000, {None: 100})] + [(1_000, even(n)) for n in range(1, 4)], "no key has 25% of the newest 400 records"),
        ([(3_000, even(0))] + [(1_000, even(n)) for n in range(1, 4)], "50%, and no single key explains that"),
        ([(1_000, even(n)) for n in range(4)], "one key (`tidemark check skew NAME` names it) has 0% of"),
    ],
    ids=["a frequent key", "no key", "a full partition", "even"],
)
def test_the_finding_should_say_the_same_without_the_key(
    partitions: list[tuple[int, dict[bytes | None, int]]], said: str
) -> None:
    full = judged(*partitions)
    shown = redacted(full)
    assert said in shown.message
    assert shown.message.split("; ")[-1].split(" has ")[-1] == full.message.split("; ")[-1].split(" has ")[-1]
    assert "p-17" not in str(shown)
    assert "0-0" not in str(shown)


def test_a_finding_with_records_and_no_message_without_them_should_show_nothing_of_its_message() -> None:
    found = redacted(
        Finding("pulses", WARNING, "key 'p-17' has 90%", {"frequent_keys": {"p-17": 0.9}, "read_records": 5})
    )
    assert "p-17" not in str(found)
    assert found.evidence == {"read_records": 5}


def test_the_share_of_a_key_should_count_how_much_its_partition_holds() -> None:
    found = judged((9_000, {b"hot": 50, **even(0, 50)}), (1_000, {b"cold": 90, b"x": 10}))
    assert found.evidence["frequent_keys"] == {"hot": 0.45, "cold": 0.09, "x": 0.01}


@pytest.mark.parametrize(("count", "is_named"), [(10, True), (9, False)])
def test_of_many_partitions_only_a_key_with_a_twentieth_of_the_topic_should_be_too_large(
    count: int, is_named: bool
) -> None:
    # Half of the topic is in one of forty partitions, and a tenth of that has one key.
    others: dict[bytes | None, int] = {b"%d" % n: 1 for n in range(100 - count)}
    found = judged((39_000, {b"hot": count, **others}), *((1_000, even(n)) for n in range(39)))
    assert found.evidence["frequent_keys"]["hot"] == count / 200
    assert found.verdict is WARNING
    assert ("more than an even partition" in found.message) is is_named
    assert ("no single key explains that" in found.message) is not is_named


def test_one_partition_should_not_be_skewed_whatever_its_keys_are() -> None:
    found = judged((1_000, {b"hot": 200}))
    assert found.verdict is OK
    assert found.message == "1 partitions with all of the offsets; key 'hot' has 100% of the newest 200 records"


def test_records_without_a_key_should_be_told_from_a_hot_key() -> None:
    found = judged((1_000, {None: 100}), (1_000, {None: 100}))
    assert found.verdict is WARNING
    assert "no key has 100% of the newest 200 records" in found.message
    assert found.message.endswith("give these records a key")


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        ({"0_0": 100}, UNKNOWN),
        ({"0_0": 50, "0_1": 49}, UNKNOWN),
        ({"0_0": 50, "0_1": 50}, OK),
        ({"0_0": 199, "0_1": 100, "0_2": 100}, OK),
        ({"0_0": 200, "0_1": 50, "0_2": 50}, WARNING),
    ],
)
def test_the_keys_of_a_store_should_spread_over_its_tasks(keys: dict[str, int], verdict: Verdict) -> None:
    found = store_finding("counts", keys, RULES)
    assert (found.subject, found.verdict) == ("store counts", verdict)
    if verdict is WARNING:
        assert found.message.startswith("3 tasks with 17% to 67% of about 300 keys; task 0_0 has 67%")


def test_a_key_that_is_no_text_should_be_shown_all_the_same() -> None:
    assert shown_key(b"\xff\x00a") == "\\xff\\x00a"
    assert shown_key(b"k" * 100) == "k" * 60 + "…"
    assert shown_key(None) == ""


def test_the_example_in_the_help_should_name_what_the_evidence_of_a_topic_holds() -> None:
    example = main.load("check").commands["skew"].epilog
    assert re.findall(r"\.evidence\.(\w+)", example) == ["frequent_keys"]
    assert "frequent_keys" in judged((1_000, even(0))).evidence

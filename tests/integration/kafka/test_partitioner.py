"""Keys are placed as by Java's and librdkafka's producers, and a bad user partitioner is refused with a clear message."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bench.java_program import compiler
from confluent_kafka import Producer
from tests.conftest import CreateTopic
from tests.support.truth.topics import read_all
from tests.system.peers import java

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.errors import ExitCode, InvalidTopology
from tidemark.kafka.partitioner import ByKey, Sticky, load_partitioner, murmur2, partition_of, partitions_of, placer
from tidemark.settings import Settings

PARTITIONS = 7
# Those of Kafka's own test of Utils.murmur2.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def by_hand(key: bytes) -> int:
    """The hash as Java's source has it, one key at a time, in Python's unbounded integers."""
    whole = len(key) // 4 * 4
    hashed = 0x9747B28C ^ len(key)
    for place in range(0, whole, 4):
        word = int.from_bytes(key[place : place + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        hashed = hashed * 0x5BD1E995 & 0xFFFFFFFF ^ word
    if rest := key[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed >> 31 else hashed


def random_keys(count: int, shortest: int = 0) -> list[bytes]:
    """Keys of every length up to 64 bytes, each byte anything."""
    rng = random.Random(7)
    return [rng.randbytes(rng.randint(shortest, 64)) for _ in range(count)]


def placed(bootstrap: str, topic: str) -> dict[bytes, int]:
    """Where each key lies."""
    rows = [row for of_partition in read_all(bootstrap, [topic]).values() for row in of_partition]
    return {row.key or b"": row.partition for row in rows}


def test_should_match_known_vectors_one_by_one_and_together() -> None:
    assert dict(zip(VECTORS, murmur2(list(VECTORS)).tolist(), strict=True)) == VECTORS
    assert [murmur2([key])[0] for key in VECTORS] == list(VECTORS.values())
    assert {key: by_hand(key) for key in VECTORS} == VECTORS


def test_should_keep_the_order_of_keys_of_different_lengths() -> None:
    keys = random_keys(2_000)
    assert murmur2(keys).tolist() == [by_hand(key) for key in keys]


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_should_hash_a_few_keys_as_many(count: int) -> None:
    # A few short keys are hashed one by one, and others in arrays.
    rng = random.Random(count)
    for length in range(131):
        keys = [rng.randbytes(length - place if length > place else 0) for place in range(count)]
        assert murmur2(keys).tolist() == [by_hand(key) for key in keys]
        assert partitions_of(keys, 7).tolist() == [partition_of(key, 7) for key in keys]
        assert murmur2(keys * 5).tolist() == [by_hand(key) for key in keys * 5]


def test_should_give_32_bit_results_even_without_keys() -> None:
    for keys in ([], [b""], [b"", b"a"]):
        assert murmur2(keys).shape == partitions_of(keys, 3).shape == (len(keys),)
        assert murmur2(keys).dtype == partitions_of(keys, 3).dtype == np.int32


def test_should_clear_the_sign_bit_of_a_negative_hash_and_not_negate_it() -> None:
    assert partitions_of([b"21"], 7).tolist() == [(-973932308 & 0x7FFFFFFF) % 7] == [partition_of(b"21", 7)]
    assert (-973932308 & 0x7FFFFFFF) % 7 != 973932308 % 7


@pytest.mark.parametrize("partitions", [0, -1])
def test_should_refuse_a_topic_without_partitions(partitions: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        partitions_of([b"a"], partitions)
    with pytest.raises(ValueError, match="a topic has at least one"):
        partition_of(b"a", partitions)


@pytest.mark.broker
def test_should_place_keys_where_a_java_producer_does(
    broker: EmbeddedBroker, create_topic: CreateTopic, unique: Callable[[str], str], tmp_path: Path
) -> None:
    if compiler() is None:
        pytest.skip("there is no javac")
    topic = create_topic(unique("placement"), PARTITIONS)
    keys = random_keys(10_000)
    lines = tmp_path / "keys"
    lines.write_text("".join(base64.b64encode(key).decode() + "\n" for key in keys))
    command = java.program(Settings.load(), "Placement", broker.bootstrap, topic, lines)
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    ours = dict(zip(keys, partitions_of(keys, PARTITIONS).tolist(), strict=True))
    assert b"" in ours
    assert placed(broker.bootstrap, topic) == ours


@pytest.mark.broker
def test_should_place_keys_where_librdkafka_does_with_murmur2_random(
    broker: EmbeddedBroker, create_topic: CreateTopic, unique: Callable[[str], str]
) -> None:
    topic = create_topic(unique("placement"), PARTITIONS)
    keys = random_keys(10_000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"", key)
    assert producer.flush(60) == 0
    ours = dict(zip(keys, partitions_of(keys, PARTITIONS).tolist(), strict=True))
    assert b"" in ours
    assert placed(broker.bootstrap, topic) == ours


def test_should_place_records_without_key_together_and_the_others_by_hash_with_by_key() -> None:
    keys = [b"21", None, b"foobar", None]
    place = placer(None, start=5)
    assert isinstance(place, ByKey)
    hashed = partitions_of([b"21", b"foobar"], PARTITIONS).tolist()
    assert place(keys, [None] * 4, PARTITIONS).tolist() == [hashed[0], 5, hashed[1], 5]
    assert place([None], [b"v"], PARTITIONS).tolist() == [6]
    assert place([], [], PARTITIONS).shape == (0,)


def test_should_give_each_batch_the_next_partition_with_sticky() -> None:
    place = placer("sticky", start=2)
    assert isinstance(place, Sticky)
    keys = [b"a", b"b", None]
    assert [place(keys, keys, 3).tolist() for _ in range(3)] == [[2, 2, 2], [0, 0, 0], [1, 1, 1]]
    assert place([], [], 3).tolist() == []
    assert place([b"a"], [b""], 3).tolist() == [2]


def first_byte(key: bytes | None, value: bytes | None, partitions: int) -> int:
    return (key or value or b"\0")[0] % partitions


def of_numpy(key: bytes | None, value: bytes | None, partitions: int) -> np.int64:
    return np.int64(partitions - 1)


def one_too_far(key: bytes | None, value: bytes | None, partitions: int) -> int:
    return partitions


def negative(key: bytes | None, value: bytes | None, partitions: int) -> int:
    return -1


def a_float(key: bytes | None, value: bytes | None, partitions: int) -> float:
    return 1.0


def failing(key: bytes | None, value: bytes | None, partitions: int) -> int:
    raise KeyError("ward")


def leaving(key: bytes | None, value: bytes | None, partitions: int) -> int:
    sys.exit(3)


def of_two(key: bytes, partitions: int) -> int:
    return 0


HERE = "tests.integration.kafka.test_partitioner"


def test_should_call_a_users_function_with_key_value_and_partition_count() -> None:
    place = placer(f"{HERE}:first_byte")
    assert place([b"\x05", None], [b"\x01", b"\x02"], 3).tolist() == [2, 2]
    assert placer(f"{HERE}:of_numpy")([b"k"], [None], 3).tolist() == [2]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("tests", "write 'sticky', or an import path 'package.module:function'"),
        ("Sticky", "write 'sticky'"),
        ("", "write 'sticky'"),
        (":function", "write 'sticky'"),
        ("module:", "write 'sticky'"),
        ("../module:function", "write 'sticky'"),
        ("tests.nowhere.at_all:f", "module tests.nowhere.at_all does not load: ModuleNotFoundError"),
        (f"{HERE}:nothing", f"there is no 'nothing' in {HERE}"),
        (f"{HERE}:PARTITIONS", "not a function of three"),
        (f"{HERE}:of_two", "not a function of three arguments; define `def of_two(key: bytes | None"),
    ],
)
def test_should_refuse_an_import_path_that_does_not_resolve_and_name_the_remedy(path: str, says: str) -> None:
    with pytest.raises(InvalidTopology) as refused:
        load_partitioner(path)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("one_too_far", "returned 3 for key b'k'; the topic has partitions 0 to 2"),
        ("negative", "returned -1 for key b'k'"),
        ("a_float", "TypeError: 'float' object cannot be interpreted as an integer"),
        ("failing", "failed for key b'k': KeyError: 'ward'"),
        ("leaving", "failed for key b'k': SystemExit: 3"),
    ],
)
def test_should_name_a_function_that_returns_no_partition(name: str, says: str) -> None:
    with pytest.raises(InvalidTopology, match=f"partitioner {HERE}:{name} ") as refused:
        placer(f"{HERE}:{name}")([b"k"], [b"v"], 3)
    assert says in str(refused.value)

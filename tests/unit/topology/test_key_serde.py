"""The bytes of keys, which are those of Java's serializers, and their text."""

from __future__ import annotations

import random

import pytest

from tidemark.errors import InvalidTopology
from tidemark.kafka.partitioner import partitions_of
from tidemark.topology.key_serde import KeySerde, checked_key_serde

# What the serializers of kafka-clients write, in hexadecimal.
WRITTEN = [
    (KeySerde.LONG, "7", "0000000000000007"),
    (KeySerde.LONG, "0", "0000000000000000"),
    (KeySerde.LONG, "-3", "fffffffffffffffd"),
    (KeySerde.LONG, "128", "0000000000000080"),
    (KeySerde.LONG, "-9223372036854775808", "8000000000000000"),
    (KeySerde.LONG, "9223372036854775807", "7fffffffffffffff"),
    (KeySerde.INTEGER, "7", "00000007"),
    (KeySerde.INTEGER, "-3", "fffffffd"),
    (KeySerde.INTEGER, "-2147483648", "80000000"),
    (KeySerde.INTEGER, "2147483647", "7fffffff"),
    (KeySerde.SHORT, "7", "0007"),
    (KeySerde.SHORT, "-3", "fffd"),
    (KeySerde.SHORT, "-32768", "8000"),
    (KeySerde.SHORT, "32767", "7fff"),
    (KeySerde.BYTES, "00ff", "00ff"),
    (KeySerde.BYTES, "", ""),
    (KeySerde.STRING, "7", "37"),
    (KeySerde.STRING, "é", "c3a9"),
    (KeySerde.STRING, "6e1b1cbe-7a1c-4c54-9e3b-2f0f6a1d3c11", b"6e1b1cbe-7a1c-4c54-9e3b-2f0f6a1d3c11".hex()),
]
NUMBERS = [KeySerde.LONG, KeySerde.INTEGER, KeySerde.SHORT]


@pytest.mark.parametrize(("serde", "text", "written"), WRITTEN)
def test_should_write_and_read_keys_as_javas_serializers_do(serde, text, written):
    assert serde.encode(text).hex() == written
    assert serde.decode(bytes.fromhex(written)) == text


def test_should_lead_to_the_partitions_that_javas_producers_choose():
    longs = [KeySerde.LONG.encode(text) for text in ("7", "0", "-3", "128", str(-(1 << 63)), str((1 << 63) - 1))]
    integers = [KeySerde.INTEGER.encode(text) for text in ("7", "-3", str(-(1 << 31)), str((1 << 31) - 1))]
    # What kafka-clients' default partitioner answers for seven partitions.
    assert (partitions_of(longs, 7).tolist(), partitions_of(integers, 7).tolist()) == ([3, 6, 0, 1, 1, 6], [1, 6, 2, 5])


@pytest.mark.parametrize("serde", NUMBERS)
def test_should_read_every_number_that_it_has_written(serde):
    chance, bits = random.Random(5), 8 * serde.width_bytes
    for number in [chance.getrandbits(chance.randrange(1, bits)) * chance.choice((-1, 1)) for _ in range(500)]:
        written = serde.encode(str(number))
        assert (len(written), serde.decode(written)) == (serde.width_bytes, str(number))


@pytest.mark.parametrize("serde", NUMBERS)
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_should_write_numbers_up_to_their_limits(serde, beyond):
    least, most = -(1 << 8 * serde.width_bytes - 1), (1 << 8 * serde.width_bytes - 1) - 1
    for number, is_inside in ((least + beyond, beyond >= 0), (most + beyond, beyond <= 0)):
        if is_inside:
            assert serde.decode(serde.encode(str(number))) == str(number)
        else:
            with pytest.raises(ValueError, match=f"key '{number}' cannot be written as {serde.value}"):
                serde.encode(str(number))


@pytest.mark.parametrize("text", ["", "abc", "07", "+7", "-0", " 7", "7 ", "1_000", "7.0", "1e3", "٧", "9" * 5000])
@pytest.mark.parametrize("serde", NUMBERS)
def test_should_refuse_a_text_that_is_not_the_usual_form_of_a_number(serde, text):
    with pytest.raises(ValueError, match=f"cannot be written as {serde.value}, which is a whole number") as raised:
        serde.encode(text)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("text", ["f", "0g", "AB", "ab cd", "é"])
def test_should_refuse_a_text_that_is_not_lower_case_hexadecimal(text):
    with pytest.raises(ValueError, match="cannot be written as bytes, which is pairs of the hexadecimal digits"):
        KeySerde.BYTES.encode(text)


@pytest.mark.parametrize("serde", NUMBERS)
@pytest.mark.parametrize("beyond", [-1, 1])
def test_should_refuse_a_key_of_another_length(serde, beyond):
    with pytest.raises(ValueError, match=f"a key of {serde.width_bytes + beyond} bytes is not {serde.value}"):
        serde.decode(bytes(serde.width_bytes + beyond))


def test_should_refuse_bytes_that_are_not_utf_8_as_text():
    with pytest.raises(ValueError, match="utf-8"):
        KeySerde.STRING.decode(b"\xff")


@pytest.mark.parametrize("serde", list(KeySerde))
def test_should_parse_the_name_of_every_form(serde):
    assert checked_key_serde(serde.value, "NODE") is serde


@pytest.mark.parametrize("name", ["double", "float", "Long", None, 8])
def test_should_name_every_form_when_a_name_is_unknown(name):
    with pytest.raises(InvalidTopology, match=r"NODE: key_serde=.* 'string', 'long', 'integer', 'short', 'bytes'"):
        checked_key_serde(name, "NODE")

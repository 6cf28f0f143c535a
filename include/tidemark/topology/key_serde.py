"""The forms in which Kafka keys are written: those of Java's serializers, and the text of each.

Everything in Tidemark works with the text of a key: a whole number as decimal digits, bytes as lower-case hexadecimal digits.
"""

from __future__ import annotations

from enum import Enum

from tidemark.errors import InvalidTopology


class KeySerde(Enum):
    """The form of the keys of a topic. Numbers are two's complement, with the most significant byte first.

    Each text has one form in bytes, and each key one text: `07` and `7` are two keys, so only `7` can be written as a number.
    """

    STRING = "string"
    """UTF-8 text, as `StringSerializer` and `UUIDSerializer` write it."""
    LONG = "long"
    """Eight bytes, as `LongSerializer` writes them."""
    INTEGER = "integer"
    """Four bytes, as `IntegerSerializer` writes them."""
    SHORT = "short"
    """Two bytes, as `ShortSerializer` writes them."""
    BYTES = "bytes"
    """Any bytes, as `ByteArraySerializer` writes them."""

    @property
    def width_bytes(self) -> int | None:
        """The length of every key, or None if keys may have any length."""
        return _WIDTH_BYTES.get(self)

    def encode(self, text: str) -> bytes:
        """Return the bytes of a key. Raises `ValueError`, with the reason, for a text that has no such form."""
        if self is KeySerde.STRING:
            return text.encode()
        key = _unhexed(text) if self is KeySerde.BYTES else _packed(text, _WIDTH_BYTES[self])
        if key is None:
            shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
            raise ValueError(f"key {shown!r} cannot be written as {self.value}, which is {_FORMS[self]}")
        return key

    def decode(self, key: bytes) -> str:
        """Return the text of a key. Raises `ValueError` for bytes that are not of this form."""
        if self is KeySerde.STRING:
            return key.decode()
        if self is KeySerde.BYTES:
            return key.hex()
        width_bytes = _WIDTH_BYTES[self]
        if len(key) != width_bytes:
            raise ValueError(f"a key of {len(key)} bytes is not {self.value}, which has {width_bytes}")
        return str(int.from_bytes(key, "big", signed=True))


_WIDTH_BYTES = {KeySerde.LONG: 8, KeySerde.INTEGER: 4, KeySerde.SHORT: 2}
_FORMS = {
    KeySerde.LONG: "a whole number from -2^63 to 2^63 - 1 without leading zeros",
    KeySerde.INTEGER: "a whole number from -2^31 to 2^31 - 1 without leading zeros",
    KeySerde.SHORT: "a whole number from -2^15 to 2^15 - 1 without leading zeros",
    KeySerde.BYTES: "pairs of the hexadecimal digits 0 to 9 and a to f",
}
_SHOWN_CHARACTERS = 64
_LONGEST_NUMBER = len(str(-(2**63)))


def _packed(text: str, width_bytes: int) -> bytes | None:
    try:
        number = int(text) if len(text) <= _LONGEST_NUMBER else None
        return None if number is None or str(number) != text else number.to_bytes(width_bytes, "big", signed=True)
    except (ValueError, OverflowError):
        return None


def _unhexed(text: str) -> bytes | None:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return key if key.hex() == text else None


def checked_key_serde(key_serde: str, node: str) -> KeySerde:
    """Parse the name of a form of keys. Raises `InvalidTopology` for any other."""
    known = {member.value: member for member in KeySerde}
    if not isinstance(key_serde, str) or key_serde not in known:
        raise InvalidTopology(f"{node}: key_serde={key_serde!r} is unknown; use one of {', '.join(map(repr, known))}")
    return known[key_serde]

"""The text of Kafka keys as SQL, which Spark runs in the generated code of the stage that reads the records."""

from __future__ import annotations

from tidemark.topology.key_serde import KeySerde

_LONG_DIGITS = 16


def key_text_sql(serde: KeySerde, string_sql: str) -> str:
    """Return the SQL of the text of the column `key`, which is null for a key of another length than `serde` has.

    `string_sql` is returned for UTF-8 text, which each caller checks in its own way.
    """
    if serde is KeySerde.STRING:
        return string_sql
    if serde is KeySerde.BYTES:
        return "lower(hex(key))"
    digits = "hex(key)"
    if serde.width_bytes != _LONG_DIGITS // 2:
        # The sign is repeated in front, because only sixteen digits are read as a signed number.
        digits = f"lpad({digits}, {_LONG_DIGITS}, IF({digits} < '8', '0', 'F'))"
    # -10 reads sixteen digits as a signed number.
    return f"CASE WHEN length(key) = {serde.width_bytes} THEN conv({digits}, 16, -10) END"

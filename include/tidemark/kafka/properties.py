"""Files of properties as the tools and brokers of Kafka, and Spark, read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def as_properties(entries: Mapping[str, str]) -> str:
    """Return the entries in Java's `.properties` format, in ASCII: Java reads the file as Latin-1."""
    return "".join(f"{_escaped_name(name)}={_escaped_value(value)}\n" for name, value in entries.items())


def _escaped_name(name: str) -> str:
    # A space, `=` or `:` would end the name, and `#` or `!` would make the line a comment.
    return re.sub(r"([ =:#!])", r"\\\1", _escaped(name))


def _escaped_value(value: str) -> str:
    plain = _escaped(value)
    return "\\" + plain if plain.startswith(" ") else plain


def _escaped(text: str) -> str:
    return "".join(c if " " <= c <= "~" else _units(c) for c in text.replace("\\", "\\\\"))


def _units(character: str) -> str:
    """Return a character as Java's UTF-16 units."""
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def log4j_properties(log: Path, level: str = "WARN") -> str:
    """Return Log4j 2 properties: everything from `level` up goes to one file that rolls over at 20 MB."""
    return as_properties(
        {
            "status": "error",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": str(log),
            "appender.file.filePattern": f"{log}.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d{ISO8601} %p %c{1} %m%n",
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": "20MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": "2",
            "rootLogger.level": level,
            "rootLogger.appenderRef.file.ref": "file",
        }
    )

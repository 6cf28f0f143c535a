"""Collects the log lines of one logger. Threads of other tests in the same process may log to others at any time."""

from __future__ import annotations

import logging

import pytest


def logged_by(caplog: pytest.LogCaptureFixture, name: str, level: int = logging.WARNING) -> list[logging.LogRecord]:
    """The records, from a level on, of a logger and of those below it."""
    return [
        record
        for record in caplog.records
        if record.levelno >= level and (record.name == name or record.name.startswith(f"{name}."))
    ]

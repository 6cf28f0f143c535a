"""Calls of the client library that must not come back."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_nobody_should_ask_the_admin_client_for_committed_offsets() -> None:
    """It ends the process with SIGSEGV when the group's coordinator has moved: librdkafka issue 5040."""
    call = re.compile(r"\.list_consumer_group_offsets\(")
    folders = ("include", "plugins", "spark_jobs", "dags", "bench")
    found = [str(file) for folder in folders for file in (ROOT / folder).rglob("*.py") if call.search(file.read_text())]
    assert found == []

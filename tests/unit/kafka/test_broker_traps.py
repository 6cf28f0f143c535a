"""Calls of the client library that must not come back."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def callers(method: str) -> list[str]:
    """The files of the product and of the benchmarks that call a method of this name."""
    call = re.compile(rf"\.{method}\(")
    folders = ("include", "plugins", "spark_jobs", "dags", "bench")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return [str(file.relative_to(ROOT)) for file in files if call.search(file.read_text())]


def test_nobody_should_ask_the_admin_client_for_committed_offsets() -> None:
    """It ends the process with SIGSEGV when the group's coordinator has moved: librdkafka issue 5040."""
    assert callers("list_consumer_group_offsets") == []


def test_groups_should_be_described_in_one_place_which_waits_for_their_coordinator() -> None:
    """It ends the process with SIGABRT while the group's coordinator is loading."""
    assert callers("describe_consumer_groups") == ["include/tidemark/kafka/offsets.py"]

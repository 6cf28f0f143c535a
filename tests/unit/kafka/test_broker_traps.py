"""Calls of the client library that must not be used again."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def callers(method: str) -> list[str]:
    """The files of the product, of the benchmarks and of the harnesses that call a method of this name."""
    call = re.compile(rf"\.{method}\(")
    folders = ("include", "plugins", "spark_jobs", "dags", "bench", "tests/support", "tests/system")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return [str(file.relative_to(ROOT)) for file in files if call.search(file.read_text())]


def test_should_never_ask_the_admin_client_for_committed_offsets() -> None:
    """Asking ends the process with SIGSEGV when the group's coordinator has moved (librdkafka issue 5040)."""
    assert callers("list_consumer_group_offsets") == []


def test_should_describe_groups_only_where_the_coordinator_is_awaited() -> None:
    """Describing a group ends the process with SIGABRT while its coordinator is loading, or answers late."""
    assert callers("describe_consumer_groups") == ["include/tidemark/kafka/offsets.py"]

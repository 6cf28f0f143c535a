"""The scan of a changelog whose broker is slow, on a client that is a fake."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidemark.checks import changelog_scan
from tidemark.checks.changelog_scan import scan_changelog
from tidemark.names import TopicPartition


class Reader:
    """A consumer that finds nothing so many times before each of its records, and nothing after the last."""

    def __init__(self, records: int, empty: int) -> None:
        self._has_record = [*[False] * empty, True] * records
        self._offset = 0

    def assign(self, partitions: object) -> None:
        pass

    def consume(self, most: int, timeout: float) -> list[SimpleNamespace]:
        if not self._has_record or not self._has_record.pop(0):
            return []
        at, self._offset = self._offset, self._offset + 1
        return [
            SimpleNamespace(
                error=lambda: None, offset=lambda: at, key=lambda: b"k", value=lambda: b"v", timestamp=lambda: (1, 5)
            )
        ]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("records", "empty", "found", "is_whole"), [(3, 0, 3, True), (3, 4, 3, True), (2, 4, 2, False), (3, 6, 0, False)]
)
def test_should_end_when_nothing_has_come_for_so_long(
    monkeypatch: pytest.MonkeyPatch, records: int, empty: int, found: int, is_whole: bool
) -> None:
    monkeypatch.setattr(changelog_scan, "read_committed_consumer", lambda *_: Reader(records, empty))
    # Five answers without a record.
    scan = scan_changelog({}, TopicPartition("app-n-changelog", 0), 0, 3, 100, stalled_after_s=0.9)
    assert (scan.records, scan.is_whole) == (found, is_whole)

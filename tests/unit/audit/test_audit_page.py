"""The page of an audit is self-contained and shows the findings."""

from __future__ import annotations

import re

from tidemark.audit.page import AuditPage, render, write_page
from tidemark.audit.ranges import Position
from tidemark.audit.table import AuditedRange
from tidemark.names import TaskId
from tidemark.stream_times import StreamTimes
from tidemark.verdict import Finding, Verdict

END = Position(TaskId(0, 1), "1", 9, 1, {"in": 5}, StreamTimes(7, {}), {})
PAGE = AuditPage(
    "app",
    "20260101T000000-000",
    1_700_000_000_000,
    {"0_1": (4, 9)},
    12_345,
    6.5,
    [Finding("a", Verdict.OK, "so it is"), Finding("b", Verdict.FAILED, "k <script>", {"unexpected": 2})],
    [AuditedRange("20250101T000000-000", 1_600_000_000_000, 1, 10, 1.0, Verdict.OK, END)],
)


def test_should_load_nothing_from_elsewhere():
    text = render(PAGE)
    assert not re.search(r"https?:|<script|<link|<img|@import|url\(", text)


def test_should_show_the_worst_first_and_what_was_audited_before():
    text = render(PAGE)
    assert "Audit of app: <span" in text
    assert text.index("k &lt;script&gt;") < text.index("so it is")
    assert "12,345 records" in text
    assert "<td>1 to 9</td>" in text


def test_should_be_found_under_its_own_name_and_as_the_newest(tmp_path):
    path = write_page(PAGE, tmp_path / "pages")
    assert path.name == "20260101T000000-000.html"
    assert (tmp_path / "pages" / "index.html").read_text() == path.read_text() == render(PAGE)

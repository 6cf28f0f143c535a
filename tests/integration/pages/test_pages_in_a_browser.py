"""Reports and pages in Debian's chromium: they show what they should, and load nothing from elsewhere."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import QUIET, open_tab
from tests.unit.audit.test_audit_page import PAGE
from tests.unit.operations.case.test_oncall_cases import APPROVED, CASE, CHANGE, CHANGING, FENCED, NOW, noted

from tidemark.audit.page import write_page
from tidemark.operations.case.case import CaseFolder
from tidemark.operations.case.report import make_report
from tidemark.overview.pages import Links, whole_page
from tidemark.topology.drawing.layout import picture
from tidemark.topology_loader import load

_FLAGS = (*QUIET, "--allow-file-access-from-files", "--virtual-time-budget=5000")
_START_S = 150

# A page around the one to look at, whose script writes down what the browser made of it.
_LOOK = """<!doctype html><meta charset="utf-8"><iframe id="page" src="{uri}" style="width:{width}px;height:900px"></iframe>
<pre id="seen"></pre><script>
addEventListener("load", () => {{
  const frame = document.getElementById("page"), page = frame.contentDocument, root = page.documentElement;
  const texts = selector => [...page.querySelectorAll(selector)].map(found => found.textContent);
  document.getElementById("seen").textContent = JSON.stringify({{
    title: page.title, headings: texts("h1, h2"), cells: texts("td"), strong: texts("strong, .verdict"), labels: texts("text"),
    scripts: page.scripts.length, broken: texts("parsererror"), invented: texts("died, reason").length,
    loaded: frame.contentWindow.performance.getEntriesByType("resource").length,
    overflow: root.scrollWidth - root.clientWidth,
    colours: Object.fromEntries([...page.querySelectorAll(".good, .bad, .ok, .failed")]
      .map(found => [found.className, frame.contentWindow.getComputedStyle(found).color])),
  }});
}});
</script>
"""

Look = Callable[..., dict[str, Any]]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """`look(page, width=1000)`: what the browser sees of a file."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: on Debian `apt-get install chromium`, as `make test` does for root")

    def seen(page: Path, width: int = 1000) -> dict[str, Any]:
        around = tmp_path / "around.html"
        around.write_text(_LOOK.format(uri=page.as_uri(), width=width))
        done = subprocess.run(
            [chromium, *_FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", around.as_uri()],
            capture_output=True, text=True, timeout=_START_S, check=True,
        )  # fmt: skip
        found = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
        assert found, done.stdout[-2000:] + done.stderr[-2000:]
        summary: dict[str, Any] = json.loads(html.unescape(found[1]))
        return summary

    return seen


def report(folder: Path, case: Any, *lines: str) -> Path:
    kept = CaseFolder.of(folder, "app", case.case_id, lambda: NOW)
    kept.open(case)
    kept.write("plan.json", {"summary": "- **Reason given**: the disk &lt;died>"})
    noted(kept, *lines)
    make_report(kept, APPROVED)
    return kept.folder / "report.html"


@pytest.mark.timeout(2 * _START_S)
def test_should_show_user_input_in_reports_as_text(look: Look, tmp_path: Path) -> None:
    restored = look(report(tmp_path / "a", CASE, *FENCED, "relaunch done", "drain done"))
    assert restored["headings"][0] == "Restore of app"
    assert restored["strong"] == ["restored"]
    assert "the disk <died>" in restored["cells"]
    assert restored["colours"] == {"good": "rgb(23, 107, 44)"}
    failed = look(report(tmp_path / "b", CHANGE, *CHANGING, "change failed"), width=500)
    assert failed["headings"] == ["Rescale of app", "Time line", "The plan that was shown"]
    assert failed["colours"] == {"bad": "rgb(170, 17, 17)"}
    for seen in (restored, failed):
        assert (seen["scripts"], seen["loaded"], seen["invented"], seen["overflow"]) == (0, 0, 0, 0)


@pytest.mark.timeout(_START_S)
def test_should_show_the_worst_findings_of_an_audit_first(look: Look, tmp_path: Path) -> None:
    seen = look(write_page(PAGE, tmp_path / "pages"))
    assert seen["title"] == "Audit of app: failed"
    assert seen["strong"][:3] == ["failed", "failed", "ok"]
    assert any(cell.startswith("k <script>") for cell in seen["cells"])
    assert (seen["scripts"], seen["loaded"], seen["overflow"]) == (0, 0, 0)


@pytest.mark.timeout(_START_S)
def test_should_draw_a_topology_without_errors_or_external_files(look: Look, tmp_path: Path) -> None:
    drawn = tmp_path / "clicks.svg"
    drawn.write_text(picture(load("clicks").plan()))
    seen = look(drawn)
    assert seen["broken"] == []
    assert (seen["scripts"], seen["loaded"]) == (0, 0)
    assert any("clicks" in label for label in seen["labels"])


_BADGE = "document.getElementById('live').textContent"
_SECTIONS = b"event: sections\ndata: {}\n\n"


@contextmanager
def streams_page(send: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve the page of all streams at the address that is yielded; `send` answers each request for updates."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/updates":
                send(self)
                return
            begin(self, "text/html")
            self.wfile.write(whole_page("Streams", {}, Links("", ""), None, "n").encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def begin(request: BaseHTTPRequestHandler, content_type: str, status: int = 200) -> None:
    request.send_response(status)
    request.send_header("Content-Type", content_type)
    request.end_headers()


@pytest.mark.timeout(2 * _START_S)
@pytest.mark.parametrize("fault", ["refuses", "breaks off", "falls silent"])
def test_the_badge_should_say_that_the_connection_is_lost_until_sections_come_again(tmp_path: Path, fault: str) -> None:
    lost, recovered = threading.Event(), threading.Event()

    def send(request: BaseHTTPRequestHandler) -> None:
        if lost.is_set() and not recovered.is_set() and fault != "falls silent":
            if fault == "refuses":
                begin(request, "text/plain", 500)
            return
        begin(request, "text/event-stream")
        request.wfile.write(b"retry: 1000\n\n")
        if not lost.is_set() or recovered.is_set():
            request.wfile.write(_SECTIONS)
        lost.set()
        if fault == "falls silent":
            recovered.wait()
            request.wfile.write(_SECTIONS)

    with streams_page(send) as address, open_tab(tmp_path) as tab:
        try:
            tab.open(address)
            tab.wait_for(f"{_BADGE} === 'Live'")
            tab.wait_for(f"{_BADGE} === 'No connection to Airflow. What you see is old.'")
        finally:
            recovered.set()
        tab.wait_for(f"{_BADGE} === 'Live'")


@pytest.mark.timeout(2 * _START_S)
def test_the_page_of_a_stream_that_is_gone_should_say_so_and_ask_no_more(tmp_path: Path) -> None:
    asked = []

    def send(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        begin(request, "text/event-stream")
        request.wfile.write(b"retry: 10\n\n" + _SECTIONS)
        if len(asked) > 1:
            request.wfile.write(b"event: gone\ndata: {}\n\n")

    with streams_page(send) as address, open_tab(tmp_path) as tab:
        tab.open(address)
        tab.wait_for(f"{_BADGE} === 'This stream is no longer shown here. Reload the page.'")
        tab.value("dispatchEvent(new Event('pageshow')); 0")
        assert tab.value("stream") is None
        assert tab.value(_BADGE) == "This stream is no longer shown here. Reload the page."
        assert len(asked) == 2


@pytest.mark.timeout(2 * _START_S)
def test_a_tab_should_go_on_waiting_when_another_page_replaces_the_one_that_it_asked(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.html").write_text(f"<!doctype html><title>{name}</title><body>{name}</body>")
    with open_tab(tmp_path) as tab:
        tab.open((tmp_path / "first.html").as_uri())
        tab.value("setTimeout(() => { location = 'second.html' }, 100); 0")
        # The first page never answers, so it is replaced while it is asked.
        tab.wait_for("document.title === 'second' || new Promise(() => {})")
        assert tab.value("document.title") == "second"

"""`tidemark top`: one frame in a pipe and as JSON, and a screen in a real terminal that ends with q or Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tidemark.cli import top as command
from tidemark.cli.main import build
from tidemark.cli.top import frame
from tidemark.operations.machine.instance_load import Lags, instance_loads
from tidemark.processes import Identity
from tidemark.settings import Settings
from tidemark.supervision.run_file import run_file_path

NOTE = "no broker leads pulse-events[0]"


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """One instance runs, which is this process, and waits for brokers that nobody runs."""
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("TIDEMARK_BROKER_TIMEOUT_MS", "100")
    made, own = Settings.load(), Identity.own()
    path = run_file_path(tmp_path, "patient-monitoring", 0)
    path.parent.mkdir(parents=True)
    content = {
        **asdict(own), "application_id": "patient-monitoring", "instance": 0,
        "topology": "patient_monitoring", "state": "RUNNING", "batch": 1_234, "last_commit_ms": int(time.time() * 1000),
        "records_per_second": 1_500.0, "partitions": ["pulse-events[0]"],
    }  # fmt: skip
    path.write_text(json.dumps(content))
    path.with_name("patient-monitoring-0.outage").write_text(json.dumps({"since_ms": 1, "why": NOTE, "topics": []}))
    return made


def test_should_print_one_frame_where_there_is_no_terminal() -> None:
    done = CliRunner().invoke(build(), ["top"])
    assert done.exit_code == 0, done.output
    header, headings, row, fault = done.stdout.splitlines()
    assert "applications: 1, instances: 1" in header
    assert headings.split()[:3] == ["application", "instance", "state"]
    assert row.split()[:5] == ["patient-monitoring", "0", "RUNNING", "1,500", "—"]
    assert row.endswith(f"waits for brokers: {NOTE}")
    assert fault.startswith("the lag is not known: ")


def test_should_print_the_same_as_json() -> None:
    done = CliRunner().invoke(build(), ["top", "--json"])
    said = json.loads(done.stdout)
    assert set(said) == {"time_ms", "bootstrap_servers", "fault", "instances"}
    (found,) = said["instances"]
    assert (found["application"], found["batch"], found["lag_offsets"]) == ("patient-monitoring", 1_234, None)
    assert found["note"] == f"waits for brokers: {NOTE}"
    assert found["memory_bytes"] > 0


@pytest.mark.parametrize("width", [60, 80])
def test_a_frame_should_be_readable_on_a_narrow_terminal(settings: Settings, width: int) -> None:
    console = Console(width=width, force_terminal=True, color_system=None, record=True, file=io.StringIO())
    console.print(
        frame(settings, 0.0, instance_loads(settings, time.time(), Lags({"patient-monitoring-0": 5})), Lags({}))
    )
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= width
    joined = "".join(shown.split()).replace("│", "")
    for part in ("patient-monitoring", "RUNNING", "1,500", "1234", "pulse-events[0]"):
        assert part in joined


class Terminal:
    """A real terminal in which `tidemark top` runs."""

    def __init__(self) -> None:
        self.seen = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "tidemark.cli.main", "top", "--every", "0.2"])

    def wait_for(self, text: str, times: int = 1, timeout_s: float = 60.0) -> None:
        ends = time.monotonic() + timeout_s
        while self.seen.count(text) < times:
            assert time.monotonic() < ends, self.seen
            if select.select([self.descriptor], [], [], 0.2)[0]:
                self.seen += os.read(self.descriptor, 65536).decode(errors="replace")

    def press(self, key: str) -> None:
        os.write(self.descriptor, key.encode())

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        while True:
            try:
                if not os.read(self.descriptor, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    os.close(made.descriptor)
    if psutil.pid_exists(made.pid):
        psutil.Process(made.pid).kill()


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_the_screen_should_update_itself_until_it_is_left_and_give_the_terminal_back(
    terminal: Terminal, key: str
) -> None:
    terminal.wait_for("patient-monitoring", times=3)
    # Keys are not shown, and arrive without a line end.
    assert not termios.tcgetattr(terminal.descriptor)[3] & (termios.ECHO | termios.ICANON)
    terminal.press("x")
    terminal.press(key)
    terminal.wait_for("\x1b[?1049l")
    assert terminal.end() == 0


def test_a_silent_broker_should_not_stop_the_screen(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[float] = []

    class Silent:
        def read(self, _: object) -> Lags:
            time.sleep(3_600)
            return Lags({})

    monkeypatch.setattr(command, "frame", lambda *_, **__: frames.append(time.monotonic()) or "frame")
    keys = iter(["", "", "q"])

    class Keys:
        def __enter__(self) -> object:
            return lambda _: next(keys)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(command, "key_presses", Keys)
    command._watch(settings, Silent(), 0.0)  # type: ignore[arg-type]
    assert len(frames) == 3

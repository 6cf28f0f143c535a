"""A real Prometheus from Debian with the repository's alert rules: what it scrapes, and which alerts fire."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tidemark import processes
from tidemark.devstack import ports
from tidemark.settings import project_root

RULES = project_root() / "include" / "tidemark" / "metrics" / "alert_rules.yaml"
_START_S = 60
_ALERT_S = 120


def tool(name: str) -> str:
    """The path of one of Prometheus's programs; the test is skipped where there is none."""
    found = shutil.which(name) or shutil.which(name, path=Path(sys.prefix) / "promtool" / "usr" / "bin")
    if found is None:
        pytest.skip(f"there is no {name}, and `make test` could not get it")
    return found


@dataclass(frozen=True)
class Prometheus:
    """A server that runs."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its HTTP API."""
        with httpx.Client(trust_env=False, timeout=10) as client:
            answer = client.get(f"{self.url}/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def value(self, expression: str) -> float | None:
        """The present value of an expression with one series; None if it has none."""
        found = self.ask("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> dict[str, Mapping[str, str]]:
        """The labels of the alerts that fire, by name."""
        alerts = self.ask("alerts")["alerts"]
        return {found["labels"]["alertname"]: found["labels"] for found in alerts if found["state"] == "firing"}

    def await_alert(self, name: str) -> Mapping[str, str]:
        """The labels of an alert, once it fires."""
        found: dict[str, Mapping[str, str]] = {}

        def fires() -> bool:
            # One that fires may end at once: where the machine is busy, a scrape may take too long, and its values are gone.
            with suppress(httpx.TransportError):
                found.update(self.firing())
            return name in found

        assert processes.wait_until(fires, _ALERT_S, every_s=0.2), (name, self.ask("alerts"))
        return found[name]


@contextmanager
def prometheus(folder: Path, jobs: Sequence[Mapping[str, Any]]) -> Iterator[Prometheus]:
    """Start it with these `scrape_configs`. Rules are evaluated each second, and their `for` is a second."""
    rules = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if "for" in rule:
            rule["for"] = "1s"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {"global": {"evaluation_interval": "1s"}, "rule_files": ["rules.yaml"], "scrape_configs": list(jobs)}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    server = Prometheus(f"http://127.0.0.1:{ports.free_port()}")
    log = folder / "prometheus.log"
    command = [
        tool("prometheus"), f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={server.url.removeprefix('http://')}", "--log.level=warn",
    ]  # fmt: skip
    started = processes.start(command, log, os.environ, folder)

    def is_ready() -> bool:
        try:
            return httpx.get(f"{server.url}/-/ready", trust_env=False).status_code == 200
        except httpx.TransportError:
            assert started.is_alive(), log.read_text()
            return False

    try:
        assert processes.wait_until(is_ready, _START_S, every_s=0.2), log.read_text()
        yield server
    finally:
        processes.stop(started)

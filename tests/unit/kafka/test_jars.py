"""The jar cache: verified, repaired, shared, with a clear error when it cannot be filled."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import PreflightFailed
from tidemark.kafka import jars
from tidemark.kafka.jars import Jar
from tidemark.settings import Settings

BYTES = {"one": b"first jar", "two": b"second jar"}
LISTED = [Jar("org.example", name, "1.0", hashlib.sha256(content).hexdigest()) for name, content in BYTES.items()]


class Registry:
    """Stands in for Ivy: puts what it has into Ivy's cache folder, as Ivy does, and counts."""

    def __init__(self) -> None:
        self.holds = dict(BYTES)
        self.asked: list[str] = []

    def __call__(self, set_name: str, wanted: list[Jar], work: Path, log: Path) -> None:
        for jar in wanted:
            self.asked.append(jar.artifact)
            if jar.artifact in self.holds:
                put(work, jar, self.holds[jar.artifact])


def put(work: Path, jar: Jar, content: bytes) -> None:
    folder = work / jar.group / jar.artifact / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{jar.artifact}-{jar.version}.jar").write_bytes(content)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    stand_in = Registry()
    monkeypatch.setattr(jars, "_run_ivy", stand_in)
    monkeypatch.setattr(jars, "listed", lambda name: LISTED)
    return stand_in


@pytest.fixture
def cached(tmp_path: Path) -> Settings:
    return Settings.load(cache_dir=tmp_path / "cache")


def test_should_list_every_jar_with_coordinates_and_a_checksum() -> None:
    for name in jars.SETS:
        listed = jars.listed(name)
        assert listed
        assert all(len(jar.sha256) == 64 for jar in listed)
        assert len({jar.file_name for jar in listed}) == len(listed)


def test_should_list_the_same_jar_with_the_same_checksum_in_every_set() -> None:
    known: dict[str, str] = {}
    for jar in (jar for name in jars.SETS for jar in jars.listed(name)):
        assert known.setdefault(str(jar), jar.sha256) == jar.sha256


def test_should_refuse_an_unknown_set_of_jars() -> None:
    with pytest.raises(ValueError, match="spark, kafka, bench"):
        jars.listed("spork")


def test_should_not_fetch_a_verified_jar_again(registry: Registry, cached: Settings) -> None:
    paths = jars.ensure("spark", cached)
    assert [path.read_bytes() for path in paths] == list(BYTES.values())
    jars.ensure("spark", cached)
    assert registry.asked == ["one", "two"]


@pytest.mark.parametrize("content", [b"", b"first", b"tampered"])
def test_should_replace_only_a_partial_or_wrong_jar(registry: Registry, cached: Settings, content: bytes) -> None:
    first = jars.ensure("spark", cached)[0]
    first.write_bytes(content)
    assert jars.ensure("spark", cached)[0].read_bytes() == BYTES["one"]
    assert registry.asked == ["one", "two", "one"]


def test_should_keep_the_jars_that_an_interrupted_fetch_had_finished(registry: Registry, cached: Settings) -> None:
    work = cached.cache_dir / "ivy" / "spark"
    put(work, LISTED[0], BYTES["one"])
    put(work, LISTED[1], b"sec")
    jars.ensure("spark", cached)
    assert registry.asked == ["two"]


def test_should_never_cache_a_jar_with_a_wrong_checksum(registry: Registry, cached: Settings) -> None:
    registry.holds["two"] = b"not what was listed"
    with pytest.raises(PreflightFailed, match=r"org\.example:two:1\.0"):
        jars.ensure("spark", cached)
    assert [path.name for path in jars.jar_folder(cached).iterdir()] == [LISTED[0].file_name]


def test_should_name_missing_jars_and_keep_the_fetched_ones_when_offline(registry: Registry, cached: Settings) -> None:
    del registry.holds["two"]
    with pytest.raises(
        PreflightFailed, match=r"1 of 2 jars of set spark \(org\.example:two:1\.0\).*offline.*connect once"
    ):
        jars.ensure("spark", cached)
    registry.holds["two"] = BYTES["two"]
    jars.ensure("spark", cached)
    assert registry.asked == ["one", "two", "two"]


def test_should_fetch_once_when_two_processes_need_a_jar(registry: Registry, cached: Settings) -> None:
    together = [threading.Thread(target=jars.ensure, args=("spark", cached)) for _ in range(4)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join(30)
    assert registry.asked == ["one", "two"]


def test_should_name_the_setting_when_the_cache_cannot_be_written(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PreflightFailed, match="TIDEMARK_CACHE_DIR"):
        jars.ensure("spark", Settings.load(cache_dir=tmp_path / "file" / "cache"))


def test_should_show_the_offline_message_when_ivy_cannot_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real Ivy, with a proxy that nobody listens on: a machine without a network, in a second.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(PreflightFailed, match=r"5 of 5 jars of set spark .*offline"):
        jars.ensure("spark", Settings.load(cache_dir=tmp_path))


def test_should_fetch_through_the_proxy_of_the_environment_and_show_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            self.send_error(403)

        def log_message(self, format: str, *args: object) -> None:
            pass

    commands: list[list[str]] = []
    start = subprocess.Popen

    def noted(command: list[str], **given: Any) -> Any:
        commands.append(command)
        return start(command, **given)

    monkeypatch.setattr(jars.subprocess, "Popen", noted)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("https_proxy", f"http://alice:s3cret@127.0.0.1:{proxy.server_port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(PreflightFailed, match="cannot fetch"):
            jars.ensure("spark", Settings.load(cache_dir=tmp_path))
        proxy.shutdown()
    assert set(asked) == {"repo1.maven.org:443"}
    assert len(commands) == 1
    log = (tmp_path / "ivy-spark.log").read_text()
    told = capsys.readouterr().err
    assert "password in HTTPS_PROXY" in " ".join(told.split())
    assert "s3cret" not in log + told + " ".join(commands[0])

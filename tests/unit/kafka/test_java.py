"""Finding Java, and refusing what Spark cannot run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.errors import PreflightFailed
from tidemark.kafka import java


def _runtime(folder: Path, version: str, *, release: bool = True) -> Path:
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    launcher.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("21-ea", 21), ("25", 25), ("1", 1), ("none", None)]
)
def test_should_read_the_feature_release(text: str, version: int | None) -> None:
    assert java.parse_version(text) == version


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize(
    ("version", "accepted"), [("16.0.2", False), ("17.0.1", True), ("18", True), ("1.8.0_392", False)]
)
def test_should_accept_only_java_17_and_later(
    version: str, accepted: bool, release: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_runtime(tmp_path / "jdk", version, release=release)))
    if accepted:
        assert java.find().version == java.parse_version(version)
    else:
        with pytest.raises(PreflightFailed, match=r"too old.*install Java 17"):
            java.find()


def test_should_name_a_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PreflightFailed, match=f"JAVA_HOME={tmp_path}"):
        java.find()


def test_should_say_how_to_install_java_when_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightFailed, match="install"):
        java.find()


def test_should_follow_a_link_on_the_path_to_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _runtime(tmp_path / "jdk", "21.0.1")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert java.find() == java.Java(home, 21)

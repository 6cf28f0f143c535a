"""JVMs of brokers and of Spark map the classes that `tidemark jars` has archived."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from tidemark.devstack import archives
from tidemark.errors import TaskLocked
from tidemark.folder_lock import FolderLock
from tidemark.kafka import class_data, java
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.spark_driver import driver_jvm_conf


def test_should_belong_to_one_class_path(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    first = class_data.kafka_archive([jar])
    assert class_data.kafka_archive([jar]) == first
    os.utime(jar, ns=(1, 1))
    assert class_data.kafka_archive([jar]) != first
    assert class_data.kafka_archive([jar, jar]) != class_data.kafka_archive([jar])


def test_should_give_no_options_where_there_is_none(tmp_path: Path) -> None:
    assert class_data.java_options(tmp_path / "none.jsa") == []


def test_should_start_silently_when_java_cannot_use_it(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsa"
    damaged.write_bytes(b"no archive" * 1000)
    command = [str(java.find().executable), *class_data.java_options(damaged), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cds" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            {},
            "-XX:+UseParallelGC -XX:NewRatio=1 -XX:Tier4InvocationThreshold=20000 "
            "-XX:Tier4MinInvocationThreshold=2400 -XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=160000 -Xms700m",
        ),
        ({"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}, "-XX:+UseSerialGC"),
    ],
)
def test_should_be_used_together_with_the_configured_garbage_collector(
    extra: dict[str, str], expected: str, tmp_path: Path
) -> None:
    settings = Settings.load(spark_driver_memory="700m", spark_extra_conf=extra)
    conf = driver_jvm_conf(settings, [tmp_path / "a.jar", tmp_path / "b.jar"])
    assert conf["spark.driver.extraJavaOptions"] == expected
    assert conf["spark.driver.extraClassPath"] == f"{tmp_path}/a.jar:{tmp_path}/b.jar"


@pytest.mark.parametrize(
    ("memory", "options"),
    [
        ("512m", "-Xms512m"),
        ("1g", "-Xms1g"),
        ("2G", "-XX:MaxNewSize=512m -Xms1024m"),
        ("1536m", "-XX:MaxNewSize=512m -Xms1024m"),
    ],
)
def test_should_begin_with_the_whole_of_a_small_heap_and_with_a_part_of_a_large_one(
    memory: str, options: str, tmp_path: Path
) -> None:
    conf = driver_jvm_conf(Settings.load(spark_driver_memory=memory), [tmp_path / "a.jar"])
    assert conf["spark.driver.extraJavaOptions"].partition("BackEdgeThreshold=160000 ")[2] == options


def test_should_archive_in_one_process_at_a_time_and_remove_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, refused, begun, may_end = [], [], threading.Event(), threading.Event()

    class NotedLock(FolderLock):
        def __init__(self, folder: Path) -> None:
            try:
                super().__init__(folder)
            except TaskLocked:
                refused.append(folder)
                raise

    def make(_settings: Settings, folder: Path, *_: object) -> None:
        made.append([each.name for each in folder.parent.iterdir() if each.is_dir() and each != folder])
        begun.set()
        may_end.wait(60)

    monkeypatch.setattr(class_data, "FOLDER", tmp_path)
    monkeypatch.setattr(archives, "FolderLock", NotedLock)
    monkeypatch.setattr(archives, "is_archive_missing", lambda _settings: not made)
    monkeypatch.setattr(archives.jars, "ensure", lambda *_: [])
    monkeypatch.setattr(archives, "_make", make)
    (tmp_path / "work" / "left").mkdir(parents=True)
    makers = [threading.Thread(target=archives.make_archives, args=(Settings.load(),)) for _ in range(2)]
    makers[0].start()
    assert begun.wait(60)
    assert archives.is_at_work()
    makers[1].start()
    assert wait_until(lambda: bool(refused), 60)
    may_end.set()
    for maker in makers:
        maker.join(60)
    assert made == [[]]
    assert not archives.is_at_work()


def test_should_only_warn_where_archives_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(class_data, "FOLDER", tmp_path / "file")
    archives.make_archives(Settings.load())
    assert "failed to create class-data archives, so brokers and Spark start slower" in caplog.text

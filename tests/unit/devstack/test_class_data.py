"""JVMs of brokers and of Spark map the classes that `tidemark jars` has archived."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from tidemark.devstack import archives
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
        ({}, "-XX:+UseParallelGC -XX:NewRatio=1 -Xms700m"),
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


def test_should_archive_in_one_process_at_a_time_and_remove_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_data, "FOLDER", tmp_path)
    monkeypatch.setattr(archives, "is_archive_missing", lambda _settings: True)
    monkeypatch.setattr(archives.jars, "ensure", lambda *_: [])
    (tmp_path / "work" / "left").mkdir(parents=True)
    begun, may_end, folders = threading.Event(), threading.Event(), []

    def make(_settings: Settings, folder: Path, *_: object) -> None:
        folders.append(sorted(each.name for each in folder.parent.iterdir() if each.is_dir()))
        begun.set()
        may_end.wait(60)

    monkeypatch.setattr(archives, "_make", make)
    makers = [threading.Thread(target=archives.make_archives, args=(Settings.load(),)) for _ in range(2)]
    makers[0].start()
    assert begun.wait(60)
    makers[1].start()
    assert not wait_until(lambda: len(folders) > 1, 1.0)
    may_end.set()
    for maker in makers:
        maker.join(60)
    assert [len(found) for found in folders] == [1, 1]
    assert "left" not in folders[0]

"""JVMs of brokers and of Spark map the classes that `tidemark jars` has archived."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tidemark.kafka import class_data, java
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

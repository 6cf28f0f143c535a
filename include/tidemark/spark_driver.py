"""Settings of the JVM of a Spark driver, the same whether spark-submit or the driver's own Python starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidemark.kafka import class_data
from tidemark.settings import Settings

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# A batch's garbage dies young and its fetch buffers are large: a big young generation, collected by all cores at once, costs
# a tenth less CPU than concurrent marking (docs/benchmarks.md).
_COLLECTOR = "-XX:+UseParallelGC -XX:NewRatio=1"
# Java's optimising compiler (C2) waits for four times as many calls of a method as by default. In a start it took nearly half
# of the processor time, much of it for code that is needed only once (docs/decisions/0036-first-batch-after-a-start.md).
_FIRST_HEAP_BYTES = 1 << 30
_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}
_COMPILER = (
    "-XX:Tier4InvocationThreshold=20000 -XX:Tier4MinInvocationThreshold=2400 "
    "-XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=160000"
)


def executor_jars_conf(master: str, jars: Sequence[Path]) -> Mapping[str, str]:
    """Return the Spark settings with which executors get the jars. `jars` are those of the set `spark`.

    Tasks in the driver's JVM have them on its class path. If they were set all the same, a start would copy them, for 0.4 s.
    """
    if master.startswith("local"):
        return {}
    return {"spark.jars": ",".join(str(jar) for jar in jars)}


def driver_jvm_conf(settings: Settings, jars: Sequence[Path]) -> Mapping[str, str]:
    """Return Spark settings for the driver's JVM. `jars` are those of the set `spark`.

    They are on the driver's own class path, because classes that Spark loads from `spark.jars` cannot be archived. Options
    in `spark_extra_conf` replace those of the collector and the compiler.
    """
    own = settings.spark_extra_conf.get(_JAVA_OPTIONS, f"{_COLLECTOR} {_COMPILER} {_heap(settings)}")
    return {
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        _JAVA_OPTIONS: " ".join([own, *class_data.java_options(class_data.spark_archive(jars))]),
    }


def _heap(settings: Settings) -> str:
    """Return the options with which a small heap has its whole size at once, so that a start does not wait while it grows.

    A large one grows when it is needed, and its young generation not beyond that of a heap of 1 GB. Otherwise what a batch
    leaves behind would fill all of it before it is collected.
    """
    heap = settings.spark_driver_memory
    number, unit = heap[:-1], heap[-1].casefold()
    is_large = int(number) << _SHIFTS[unit] > _FIRST_HEAP_BYTES
    return f"-XX:MaxNewSize={_FIRST_HEAP_BYTES >> 21}m -Xms{_FIRST_HEAP_BYTES >> 20}m" if is_large else f"-Xms{heap}"

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


def driver_jvm_conf(settings: Settings, jars: Sequence[Path]) -> Mapping[str, str]:
    """Return Spark settings for the driver's JVM. `jars` are those of the set `spark`.

    They are on the driver's own class path, because classes that Spark loads from `spark.jars` cannot be archived. Options
    in `spark_extra_conf` replace those of the collector.
    """
    own = settings.spark_extra_conf.get(_JAVA_OPTIONS, f"{_COLLECTOR} -Xms{settings.spark_driver_memory}")
    return {
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        _JAVA_OPTIONS: " ".join([own, *class_data.java_options(class_data.spark_archive(jars))]),
    }

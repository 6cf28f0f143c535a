"""Class-data archives: classes that one JVM has loaded and verified, for later JVMs to map into memory.

With one, a start of Spark takes less than half of the processor time. An archive belongs to one Java and one class path, so
its name contains a hash of both. `tidemark.devstack.archives` creates them; without one, Java starts as always.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tidemark.kafka import java

FOLDER = Path(sys.prefix) / "class-data"
"""Beside the packages with these classes, so that both are removed together."""


def kafka_archive(jars: Sequence[Path]) -> Path:
    """Return the path of the archive for brokers and Kafka's tools, whether it exists or not."""
    return _named("kafka", jars)


def spark_archive(jars: Sequence[Path]) -> Path:
    """Return the path of the archive for Spark drivers with `jars` on their class path, whether it exists or not."""
    spec = importlib.util.find_spec("pyspark")
    folders = [Path(folder) / "jars" for folder in (spec.submodule_search_locations if spec else None) or ()]
    return _named("spark", [*jars, *sorted(jar for folder in folders for jar in folder.glob("*.jar"))])


def _named(name: str, class_path: Iterable[Path]) -> Path:
    home = java.find().home
    key = hashlib.sha256(str(home).encode())
    # Java compares the same properties when it opens an archive.
    for file in (home / "release", *class_path):
        if file.exists():
            found = file.stat()
            key.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode())
    return FOLDER / f"{name}-{key.hexdigest()[:16]}.jsa"


_QUIET = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def archiving_options(archive: Path) -> list[str]:
    """Return the options that make Java archive the classes that it has loaded when it ends."""
    return ["-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={archive}", *_QUIET]


def java_options(archive: Path) -> list[str]:
    """Return the options that make Java use an archive; none if it does not exist. Java ignores one that it cannot use."""
    if not archive.exists():
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET]

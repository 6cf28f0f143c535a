"""The jars that are not part of pyspark: listed with SHA-256, fetched once into a cache folder, verified.

A set is a text file in `jar_lists/`: one `group:artifact:version sha256` per line. Ivy, whose jar is part of pyspark,
fetches exactly those, without reading POMs, so that nothing is resolved again and no tool has to be installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidemark.errors import PreflightFailed
from tidemark.kafka import java
from tidemark.kafka.java_proxy import java_proxy
from tidemark.settings import Settings

SetName = Literal["spark", "kafka", "bench"]
SETS: tuple[SetName, ...] = ("spark", "kafka", "bench")
_LISTS = Path(__file__).parent / "jar_lists"

_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <timeout-constraints>
    <timeout-constraint name="t" connectionTimeout="15000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false" timeoutConstraint="t"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True, order=True)
class Jar:
    """One jar by exact coordinates, and the SHA-256 of its bytes."""

    group: str
    artifact: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """Return its name in the cache folder; sets share the jars that they have in common."""
        return f"{self.group}_{self.artifact}-{self.version}.jar"

    @classmethod
    def parse(cls, line: str) -> Jar:
        """Parse one line of a list; raises `ValueError` on anything else."""
        coordinates, sha256 = line.split()
        group, artifact, version = coordinates.split(":")
        return cls(group, artifact, version, sha256)


def listed(set_name: str) -> list[Jar]:
    """Return the jars of a set, sorted; raises `ValueError` for an unknown set."""
    if set_name not in SETS:
        raise ValueError(f"no jar set {set_name!r}; the sets are {', '.join(SETS)}")
    lines = (_LISTS / f"{set_name}.txt").read_text().splitlines()
    return sorted(Jar.parse(line) for line in lines if line and not line.startswith("#"))


def jar_folder(settings: Settings) -> Path:
    """Return the folder of verified jars."""
    return settings.cache_dir / "jars"


def ensure(set_name: str, settings: Settings) -> list[Path]:
    """Return the verified jars of a set, and fetch those that are missing or wrong. Blocks while any process fetches.

    Raises `PreflightFailed` with what is missing if the registry cannot be reached or returns other bytes.
    """
    jars = listed(set_name)
    folder = jar_folder(settings)
    if missing(jars, folder):
        with _locked(settings.cache_dir):
            lacking = missing(jars, folder)
            if lacking:
                _fetch(set_name, lacking, settings)
    return [folder / jar.file_name for jar in jars]


def missing(jars: list[Jar], folder: Path) -> list[Jar]:
    """Return the jars that are not in the folder, or not complete and unchanged."""
    return [jar for jar in jars if not _is_verified(folder / jar.file_name, jar)]


def _is_verified(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the cache's lock; the system releases it when this process ends for any reason."""
    try:
        _make_shared(folder)
        opened = (folder / "jars.lock").open("a")
    except OSError as error:
        raise PreflightFailed(
            f"cannot write the jar cache {folder} ({error.strerror}): "
            "set TIDEMARK_CACHE_DIR to a folder that can be written"
        ) from error
    with opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            Console(stderr=True).print(f"waiting for another process that fetches jars into {folder}")
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _make_shared(folder: Path) -> None:
    """Make a folder that every user may read: unlike other files, jars are not secret."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)


def _fetch(set_name: str, lacking: list[Jar], settings: Settings) -> None:
    folder = jar_folder(settings)
    _make_shared(folder)
    work = settings.cache_dir / "ivy" / set_name
    # An earlier fetch may have been interrupted: the jars that it has finished are not fetched again.
    _harvest(lacking, work, folder)
    shutil.rmtree(work, ignore_errors=True)
    lacking = missing(lacking, folder)
    if lacking:
        work.mkdir(parents=True)
        log = settings.cache_dir / f"ivy-{set_name}.log"
        _run_ivy(set_name, lacking, work, log)
        wrong = _harvest(lacking, work, folder)
        still = missing(lacking, folder)
        if wrong:
            shutil.rmtree(work, ignore_errors=True)
            raise PreflightFailed(
                f"the registry's {wrong[0]} is not the file whose SHA-256 is in {set_name}.txt: "
                "nothing of it was kept; fetch again, and check the network's proxy if it happens again"
            )
        if still:
            names = ", ".join(str(jar) for jar in still[:3]) + (", …" if len(still) > 3 else "")
            raise PreflightFailed(
                f"cannot fetch {len(still)} of {len(listed(set_name))} jars of set {set_name} ({names}), "
                "possibly because this machine is offline: connect once and run this again, "
                f"or copy them into {folder} (details: {log})"
            )
    shutil.rmtree(work, ignore_errors=True)


def _harvest(jars: list[Jar], work: Path, folder: Path) -> list[Jar]:
    """Move verified jars from Ivy's cache into ours, each atomically; return those with wrong bytes."""
    wrong = []
    for jar in jars:
        for found in (work / jar.group / jar.artifact).glob(f"*/{jar.artifact}-{jar.version}.jar"):
            if _is_verified(found, jar):
                found.chmod(0o644)
                found.replace(folder / jar.file_name)
            else:
                wrong.append(jar)
    return wrong


def _run_ivy(set_name: str, jars: list[Jar], work: Path, log: Path) -> None:
    """Let Ivy fetch into `work`; its exit code is ignored, as the files are checked by SHA-256."""
    dependencies = "".join(
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" conf="default" transitive="false"/>\n'
        for jar in jars
    )
    (work / "settings.xml").write_text(_IVY_SETTINGS)
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="tidemark" module="jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    proxy = java_proxy(os.environ)
    command = [
        str(java.find().executable), *proxy.options, "-jar", str(_ivy_jar()), "-settings", str(work / "settings.xml"),
        "-ivy", str(work / "ivy.xml"), "-cache", str(work), "-confs", "default",
    ]  # fmt: skip
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        log.open("w") as kept,
        Progress(*columns, console=Console(stderr=True)) as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy,
    ):
        for reason in proxy.left_out:
            progress.console.print(reason, markup=False, highlight=False)
        bar = progress.add_task(f"fetching jars ({set_name})", total=len(jars))
        for line in ivy.stdout or ():
            kept.write(line)
            if "[SUCCESSFUL ]" in line:
                progress.advance(bar)


def _ivy_jar() -> Path:
    # Found without importing Spark, which would take longer than the fetch.
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for found in (Path(folder) / "jars").glob("ivy-*.jar"):
            return found
    raise PreflightFailed(f"no Ivy jar inside pyspark of {sys.prefix}: run `make setup`")

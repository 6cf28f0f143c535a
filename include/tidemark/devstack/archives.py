"""Creates class-data archives: starts a broker and Spark once, lets them work, and stores the classes that they have loaded."""

from __future__ import annotations

import logging
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.devstack.broker import EmbeddedBroker
from tidemark.errors import OutcomeUnknown, TaskLocked, TidemarkError
from tidemark.folder_lock import FolderLock, is_locked
from tidemark.kafka import class_data, jars
from tidemark.processes import wait_until
from tidemark.settings import Settings
from tidemark.spark_submit import job_lines

log = logging.getLogger(__name__)

_SCRIPT = Path("spark_jobs") / "class_data.py"
_DUMP_S, _OTHER_S = 600.0, 600.0
"""Long, because beside a busy stack this gets little of the processors."""
WORK = "archiving the classes of Kafka and Spark, once, so that they start in half the time"
"""The text that is shown while `make_archives` works."""


def is_archive_missing(settings: Settings) -> bool:
    """Return whether the archive of Spark or that of brokers is missing. Blocks while jars are fetched."""
    return not all(archive.exists() for archive in _archives(settings))


def make_archives(settings: Settings) -> None:
    """Create the archives of Spark and of brokers, which blocks for about half a minute.

    If another process is doing that, waits for it. The archives matter only to the time of a start, so a failure is logged as a
    warning.
    """
    try:
        with _only_maker() as folder:
            if is_archive_missing(settings):
                _make(settings, folder, jars.ensure("kafka", settings), *_archives(settings))
    except (OSError, TidemarkError, subprocess.SubprocessError) as error:
        log.warning("failed to create class-data archives, so brokers and Spark start slower: %s", error)


@contextmanager
def _only_maker() -> Iterator[Path]:
    """Yield an empty folder to work in, which no other process uses. What a killed one has left there is removed."""
    locks: list[FolderLock] = []
    folder = _work()
    folder.mkdir(parents=True, exist_ok=True)

    def is_free() -> bool:
        try:
            locks.append(FolderLock(folder))
        except TaskLocked:
            return False
        return True

    if not wait_until(is_free, _OTHER_S, every_s=0.5):
        raise OutcomeUnknown(f"another process has not ended its work in {class_data.FOLDER} within {_OTHER_S:.0f} s")
    with locks[0] as lock:
        for left in lock.folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=lock.folder) as name:
            yield Path(name)


def is_at_work() -> bool:
    """Return whether a process is creating archives now."""
    return is_locked(_work())


def _work() -> Path:
    return class_data.FOLDER / "work"


def _archives(settings: Settings) -> tuple[Path, Path]:
    kafka, spark = jars.ensure("kafka", settings), jars.ensure("spark", settings)
    return class_data.kafka_archive(kafka), class_data.spark_archive(spark)


def _make(settings: Settings, folder: Path, kafka_jars: list[Path], kafka: Path, spark: Path) -> None:
    made = {archive: folder / archive.name for archive in (kafka, spark)}
    options = {"JDK_JAVA_OPTIONS": " ".join(class_data.archiving_options(made[kafka]))}
    with EmbeddedBroker(folder / "broker", kafka_jars, environment=options) as broker:
        own = settings.model_copy(
            update={
                "bootstrap_servers": broker.bootstrap,
                "security_protocol": "PLAINTEXT",
                "state_dir": folder / "state",
                "spark_master": "local[2]",
            }
        )
        for line in job_lines(_SCRIPT, [str(made[spark])], own, "the job that archives Spark's classes"):
            log.info("%s", line)
        # The broker writes its archive when it ends. One that was killed meanwhile may have left a part of it.
        if not broker.stop(_DUMP_S):
            raise OutcomeUnknown(f"the broker has not written its archive within {_DUMP_S:.0f} s")
    for archive, there in made.items():
        if there.exists():
            _remove_others(archive)
            there.replace(archive)


def _remove_others(archive: Path) -> None:
    """Remove archives of an earlier Java or of earlier jars."""
    for other in archive.parent.glob(f"{archive.name.partition('-')[0]}-*.jsa"):
        other.unlink(missing_ok=True)

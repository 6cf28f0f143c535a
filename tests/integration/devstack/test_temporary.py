"""Temporary files: each process has its own folder, and the next process of that name removes what a killed one left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidemark.folder_lock import FolderLock
from tidemark.settings import Settings, project_root
from tidemark.temporary_folder import abandoned_folders, temporary_folder, temporary_folders, use_temporary_folder

_VARIABLES = ("TMPDIR", "SPARK_LOCAL_DIRS", "SPARK_SUBMIT_OPTS")
_HOLD = (
    "import sys; from pathlib import Path; from tidemark.temporary_folder import use_temporary_folder;"
    "lock = use_temporary_folder(Path(sys.argv[1])); print(lock.folder, flush=True); sys.stdin.read()"
)
# Shuffles, so that Spark writes blocks and Java unpacks its compression.
_SPARK = """
import sys
from spark_jobs.session import spark_session
from tidemark.temporary_folder import temporary_folders, use_temporary_folder
from tidemark.settings import Settings
settings = Settings.load()
print(use_temporary_folder(temporary_folders(settings.state_dir, "app-0")).folder)
spark = spark_session(settings, "app-0")
assert spark.range(100_000).repartition(2).distinct().count() == 100_000
print("computed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an instance that was never launched will make its temporary folders."""
    for name in _VARIABLES:
        # Set first: what a test sets is taken back afterwards, also where there was nothing.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(tempfile, "tempdir", None)
    return temporary_folders(tmp_path / "state", "app-0")


def _use(folders: Path) -> FolderLock:
    lock = use_temporary_folder(folders)
    assert lock is not None
    return lock


def _holder(folders: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folders)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_should_remove_the_files_of_a_killed_process_and_keep_those_of_a_live_one(folders: Path) -> None:
    killed, left = _holder(folders)
    living, kept = _holder(folders)
    try:
        (left / "blockmgr" / "00").mkdir(parents=True)
        (left / "blockmgr" / "00" / "block").write_text("a block")
        (kept / "file").write_text("in use")
        killed.kill()
        killed.wait(60)

        lock = _use(folders)

        assert {path for path in folders.iterdir() if path.is_dir()} == {kept, lock.folder}
        assert (kept / "file").read_text() == "in use"
        lock.release()
    finally:
        living.kill()
        living.wait(60)


def test_should_remove_the_folder_of_a_block_and_find_that_of_a_killed_process(tmp_path: Path) -> None:
    with temporary_folder(tmp_path, "app-plan") as folder:
        (folder / "built").mkdir()
        assert folder.parent == temporary_folders(tmp_path, "app-plan")
        assert abandoned_folders(folder.parent) == []
    assert not folder.exists()
    killed = (
        "import os, sys; from pathlib import Path; from tidemark.temporary_folder import temporary_folder\n"
        "with temporary_folder(Path(sys.argv[1]), 'app-plan'): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    assert len(abandoned_folders(folder.parent)) == 1
    with temporary_folder(tmp_path, "app-plan") as folder:
        assert [path for path in folder.parent.iterdir() if path.is_dir()] == [folder]


def test_should_leave_the_folders_of_other_names(folders: Path) -> None:
    of_another_instance = folders.with_name("app-00") / "launch"
    of_another_instance.mkdir(parents=True)
    _use(folders).release()
    assert of_another_instance.is_dir()


def test_should_be_the_temporary_folder_of_python_and_of_its_child_processes(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dof=another")
    with _use(folders) as lock, tempfile.NamedTemporaryFile() as file:
        assert Path(file.name).parent == lock.folder
        assert os.environ["SPARK_LOCAL_DIRS"] == str(lock.folder)
        assert os.environ["SPARK_SUBMIT_OPTS"] == f"-Dof=another -Djava.io.tmpdir={lock.folder}"


def test_should_keep_the_spill_folder_that_an_operator_has_configured(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/large/disk")
    with _use(folders):
        assert os.environ["SPARK_LOCAL_DIRS"] == "/large/disk"


def test_should_leave_the_folder_to_the_caller_when_started_by_spark_submit(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert use_temporary_folder(folders) is None
    assert not folders.exists()


@pytest.mark.spark
@pytest.mark.timeout(360)
@pytest.mark.usefixtures("folders")
def test_should_keep_all_files_of_a_killed_spark_in_one_folder(tmp_path: Path) -> None:
    # With a space, as a folder of a person may have.
    settings = Settings.load(state_dir=tmp_path / "a state", spark_master="local[2]", spark_driver_memory="512m")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    spark = subprocess.Popen(
        [sys.executable, "-c", _SPARK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=project_root(),
        env={**os.environ, **settings.as_environment(), "TMPDIR": str(elsewhere)},
        start_new_session=True,
    )
    assert spark.stdout is not None
    own = Path(spark.stdout.readline().strip())
    assert spark.stdout.readline().strip() == "computed"
    assert any(own.glob("**/*.data")), "no shuffle in the folder"
    assert any(own.glob("liblz4*")), "no library unpacked in the folder"
    os.killpg(spark.pid, signal.SIGKILL)
    spark.wait(60)

    folders = temporary_folders(settings.state_dir, "app-0")
    with _use(folders) as lock:
        assert [path for path in folders.iterdir() if path.is_dir()] == [lock.folder]
    assert list(elsewhere.iterdir()) == []

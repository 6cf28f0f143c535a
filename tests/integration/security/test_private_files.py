"""Files that Tidemark writes may hold personal data: only its user can read them, whatever umask a process has."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.leaks import arguments_watched, files_with
from tests.support.secured import PASSWORD, Secured, allow
from tests.system.crash.bench import CHEAP, Bench

from tidemark.kafka.acls import least_acls
from tidemark.processes import wait_until

ROOT = Path(__file__).parents[3]
SPARKS_SECRET = "between-driver-and-executors"
STORES_SECRET = "key-of-an-object-store-8112"
_STORE = json.dumps({"spark.hadoop.fs.s3a.secret.key": STORES_SECRET})
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """What a login shell has: files may be read by everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def read_by_others(*folders: Path) -> list[str]:
    found = [path for folder in folders for path in [folder, *folder.rglob("*")]]
    assert found
    return [str(path) for path in found if not path.is_symlink() and path.lstat().st_mode & OPEN_TO_OTHERS]


def tidemark(bench: Bench, *arguments: str) -> str:
    """Run a command to its end as a user would."""
    command = [sys.executable, "-m", "tidemark.cli.main", *arguments]
    done = subprocess.run(command, env=bench.environment(), cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


class SecuredBench(Bench):
    """Its processes have a password and secrets of Spark; the test itself needs none."""

    def __init__(self, broker: Secured, folder: Path) -> None:
        self._login = broker.candidates["scram"]
        settings = {**CHEAP, "TIDEMARK_AUDIT_TIME_SHARE": "1"}
        super().__init__(broker.broker.bootstrap, folder, seed=7, partitions=1, settings=settings)

    def environment(self, disk: str = "state") -> dict[str, str]:
        secured = {**self._login, "spark_authenticate_secret": SPARKS_SECRET, "spark_extra_conf": _STORE}
        return super().environment(disk) | {f"TIDEMARK_{name.upper()}": str(value) for name, value in secured.items()}


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_should_leave_no_file_that_others_can_read_or_that_holds_a_secret(
    guarded_broker: Secured, tmp_path: Path, usual_umask: None
) -> None:
    """Covers state, savepoints, facts, run files, reports and logs of an instance, a savepoint, a plan, a check, an audit."""
    bench = SecuredBench(guarded_broker, tmp_path / "bench")
    allow(guarded_broker.admin, least_acls(bench.plan, 1, audits=True))
    plan = bench.folder / "plan.json"
    # As it stands in a file with quotes and backslashes of its own.
    secrets = [PASSWORD.partition('"')[0], SPARKS_SECRET, STORES_SECRET]
    with arguments_watched(secrets) as told_to_processes:
        try:
            bench.feeder.feed(4000)
            process = bench.launch()
            bench.wait_drained()
            tidemark(bench, "savepoint", "take", bench.topology)
            tidemark(bench, "check", "lag", bench.topology)
            tidemark(bench, "audit", "run", bench.topology)
            assert bench.stop(process) == 0
            tidemark(bench, "restore", "plan", bench.topology, "--out", str(plan))
        finally:
            bench.end_all()
    written = {part: bench.folder / part for part in ("var", "state", "savepoints")}
    assert all(list(folder.rglob("*.*")) for folder in written.values())
    assert (written["var"] / "facts.db").exists()
    assert list((written["var"] / "audit").rglob("*.html"))
    assert plan.exists()
    assert read_by_others(*written.values(), plan) == []
    assert "RUNNING" in (bench.folder / "instance-0.log").read_text()
    assert (told_to_processes, files_with(secrets, [bench.folder])) == ([], [])


def test_should_find_a_secret_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\x00 the hushed-word \xff")
    with (
        arguments_watched(["hushed-word"]) as summary,
        subprocess.Popen([sys.executable, "-c", "input()", "--password=hushed-word"], stdin=subprocess.PIPE) as process,
    ):
        assert wait_until(lambda: len(summary) > 0, 60)
        process.communicate(b"\n")
    assert files_with(["hushed-word"], [tmp_path]) == [f"{tmp_path / 'log'}: hush…"]


ENTRY = re.compile(r'^if __name__ == "__main__":', re.M)
WRITES_NOTHING = {
    "include/tidemark/settings_table.py": "prints a page",
    "include/tidemark/kafka/java.py": "prints where Java is",
    "include/tidemark/processes.py": "ends processes",
    "spark_jobs/measured_instance.py": "is stream_instance.py with an option",
}


def test_should_set_the_file_mask_first_in_every_program() -> None:
    programs = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in ("include/tidemark", "spark_jobs")
        for path in (ROOT / folder).rglob("*.py")
        if ENTRY.search(path.read_text())
    }
    assert {name for name, text in programs.items() if "keep_files_private()" not in text} == set(WRITES_NOTHING)
    assert "spark_jobs/stream_instance.py" in programs


@pytest.mark.parametrize("dag", sorted(path.name for path in (ROOT / "dags").glob("[a-z]*.py")))
def test_should_set_the_file_mask_in_every_dag(dag: str) -> None:
    assert re.search(r"^from tidemark_airflow\.", (ROOT / "dags" / dag).read_text(), re.M)


def test_should_write_private_files_in_airflow_processes(tmp_path: Path, usual_umask: None) -> None:
    script = "import pathlib, tidemark_airflow.threads; pathlib.Path('written').mkdir(); pathlib.Path('f').touch()"
    path = f"{ROOT / 'include'}:{ROOT / 'plugins'}"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, check=True)
    assert read_by_others(tmp_path / "written", tmp_path / "f") == []

"""A Spark standalone cluster of real processes, each part on a loopback address of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pyspark

from tidemark.devstack.ports import free_port
from tidemark.processes import wait_until

MASTER, WORKERS = "127.0.0.2", ("127.0.0.3", "127.0.0.4")
"""A driver on 127.0.0.1 shares its address with none of them."""
_START_S = 240.0


class Standalone:
    """A master and two workers of one core. As a context manager it is started, and ended at the end of the block."""

    def __init__(self, folder: Path, secret: str = "") -> None:
        self._folder = folder
        self._secret = secret
        self._port, self._page = free_port(), 0
        self._stack = ExitStack()
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """As `spark_master` takes it."""
        return f"spark://{MASTER}:{self._port}"

    def __enter__(self) -> Standalone:
        self._folder.mkdir(parents=True)
        self._page = free_port({self._port})
        self._launch("master", "master.Master", "--host", MASTER, "--port", self._port, "--webui-port", self._page)
        for number, host in enumerate(WORKERS):
            folder = self._folder / f"work-{number}"
            given = ("--host", host, "--webui-port", free_port(), "--cores", 1, "--memory", "1g", "--work-dir", folder)
            self.workers.append(self._launch(f"worker-{number}", "worker.Worker", *given, self.url))
        if not wait_until(lambda: self._alive() == len(WORKERS), _START_S, 0.2):
            self._stack.close()
            raise RuntimeError(f"the workers have not joined: {(self._folder / 'master.log').read_text()[-2000:]}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def executors(self) -> dict[int, psutil.Process]:
        """The executors that run, by the number of their worker."""
        return {
            number: child
            for number, worker in enumerate(self.workers)
            if worker.poll() is None
            for child in psutil.Process(worker.pid).children(recursive=True)
            if child.is_running() and any("CoarseGrainedExecutorBackend" in part for part in _command(child))
        }

    def kill_worker(self, number: int) -> None:
        """SIGKILL, with the executor that it has started, as when its machine is gone."""
        processes = [*psutil.Process(self.workers[number].pid).children(recursive=True)]
        self.workers[number].kill()
        for process in processes:
            _kill(process)
        self.workers[number].wait()

    def _alive(self) -> int:
        try:
            page = httpx.get(f"http://{MASTER}:{self._page}/json/", timeout=30, trust_env=False).raise_for_status()
            return int(page.json()["aliveworkers"])
        except (httpx.HTTPError, ValueError):
            # A page that is not there yet, or not whole.
            return 0

    def _launch(self, name: str, part: str, *arguments: object) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": MASTER}
        if self._secret:
            environment["_SPARK_AUTH_SECRET"] = self._secret
            environment["SPARK_DAEMON_JAVA_OPTS"] = "-Dspark.authenticate=true -Dspark.network.crypto.enabled=true"
        if name != "master":
            environment["SPARK_LOCAL_IP"] = str(arguments[1])
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{part}", *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        self._stack.callback(_end, process)
        return process


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        for child in children:
            _kill(child)
    process.wait()


def _kill(process: psutil.Process) -> None:
    """SIGKILL. An executor may have ended by itself, as it does when its worker is gone."""
    with suppress(psutil.NoSuchProcess):
        process.kill()

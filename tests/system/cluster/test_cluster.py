"""A stream on a Spark standalone cluster: an executor and a worker killed under load. `make cluster` kills the rest, too."""

from __future__ import annotations

import threading

import psutil
import pytest
from spark_jobs.cluster import cluster_conf
from tests.system.cluster.run import ClusterBench, kill_executor_and_worker
from tests.system.cluster.standalone import Standalone
from tests.system.crash.bench import CHEAP

from tidemark.errors import PreflightFailed
from tidemark.settings import Settings

SECRET = "nobody-else-knows"


@pytest.fixture(scope="module")
def make_bench():
    return lambda bootstrap, folder: ClusterBench(bootstrap, folder, seed=7, settings=CHEAP)


@pytest.mark.crash
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_should_be_exact_when_an_executor_a_worker_and_the_instance_are_killed(bench, tally, tmp_path):
    with Standalone(tmp_path / "spark", SECRET) as cluster:
        bench.master, bench.secret = cluster.url, SECRET
        seen = command_lines_while(lambda: kill_executor_and_worker(bench, cluster, tally))
        bench.end_all()
    assert any("CoarseGrainedExecutorBackend" in line for line in seen)
    assert any("stream_instance.py" in line for line in seen)
    assert [line for line in seen if SECRET in line] == []


def command_lines_while(doing):
    """Of all processes that run meanwhile."""
    seen, done = set(), threading.Event()

    def look():
        while not done.wait(0.5):
            for process in psutil.process_iter(["cmdline"]):
                seen.add(" ".join(process.info["cmdline"] or ()))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        doing()
    finally:
        done.set()
        looking.join()
    return seen


def conf(**given):
    return cluster_conf(Settings.load(**given))


def test_should_keep_a_local_driver_on_loopback():
    kept = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    assert conf(spark_master="local[2]") == kept
    # Without a cluster nothing protects its ports.
    assert conf(spark_master="local[2]", spark_driver_host="192.0.2.1") == kept


def test_should_give_a_cluster_the_drivers_address_its_share_of_cores_and_its_secret():
    found = conf(
        spark_master="spark://192.0.2.7:7077", spark_driver_host="192.0.2.1", spark_cores_max=3,
        spark_executor_memory="2g", spark_authenticate_secret=SECRET,
    )  # fmt: skip
    assert found == {
        "spark.driver.host": "192.0.2.1",
        "spark.driver.bindAddress": "192.0.2.1",
        "spark.cores.max": "3",
        "spark.executor.memory": "2g",
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.io.encryption.enabled": "true",
    }
    assert SECRET not in str(found)


@pytest.mark.parametrize("master", ["spark://192.0.2.7:7077", "spark://127.0.0.2:7077,192.0.2.7:7077", "yarn"])
def test_should_refuse_a_cluster_whose_executors_cannot_reach_the_driver(master):
    with pytest.raises(PreflightFailed, match="TIDEMARK_SPARK_DRIVER_HOST"):
        conf(spark_master=master)


def test_should_refuse_to_listen_beyond_loopback_without_a_secret():
    beyond = {"spark_master": "spark://192.0.2.7:7077", "spark_driver_host": "192.0.2.1"}
    with pytest.raises(PreflightFailed, match="TIDEMARK_SPARK_AUTHENTICATE_SECRET"):
        conf(**beyond)


@pytest.mark.parametrize(
    "given",
    [
        {"spark_driver_host": "192.0.2.1"},
        {"spark_driver_host": "192.0.2.1", "spark_authenticate_secret": SECRET},
        {"spark_master": "spark://127.0.0.2:7077", "spark_authenticate_secret": SECRET},
    ],
)
def test_should_encrypt_nothing_for_a_network_that_is_protected_in_another_way(given):
    """Spark refuses every driver whose connections are encrypted and not authenticated."""
    unprotected = {"spark.authenticate": "false"}
    settings = {"spark_master": "spark://192.0.2.7:7077", **given, "spark_extra_conf": unprotected}
    merged = conf(**settings) | unprotected
    assert {name for name, value in merged.items() if value == "true"} == set()

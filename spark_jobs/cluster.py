"""Spark settings of a driver on a cluster: its address for the executors, its share of the cluster, and its protection."""

from __future__ import annotations

import ipaddress
import re
import socket

from tidemark.errors import PreflightFailed
from tidemark.settings import Settings

_LOOPBACK = "127.0.0.1"
_PROTECTED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}


def cluster_conf(settings: Settings) -> dict[str, str]:
    """Return Spark's settings for the driver's address, its share, and the protection that is needed beyond loopback.

    Raises `PreflightFailed` if executors on other machines could not reach the driver, or would reach it unprotected.
    """
    if settings.spark_master.startswith("local"):
        # Executors run on this machine, so the driver needs no port that other machines can reach.
        return _listening_on(_LOOPBACK)
    host = settings.spark_driver_host
    conf = _listening_on(host)
    if settings.spark_cores_max:
        conf["spark.cores.max"] = str(settings.spark_cores_max)
    has_secret = bool(settings.spark_authenticate_secret.get_secret_value())
    # Spark refuses to start with encryption that has no authentication.
    is_declined = settings.spark_extra_conf.get("spark.authenticate", "true").lower() == "false"
    protection = {} if is_declined else _PROTECTED
    conf["spark.executor.memory"] = settings.spark_executor_memory
    if _is_loopback(host):
        elsewhere = [name for name in _hosts(settings.spark_master) if not _is_loopback(name)]
        if elsewhere or not settings.spark_master.startswith("spark://"):
            raise PreflightFailed(
                f"the driver listens on {host}, so executors of {settings.spark_master} cannot reach it; set "
                "`spark_driver_host` (TIDEMARK_SPARK_DRIVER_HOST) to this machine's address in their network"
            )
        return conf | protection if has_secret else conf
    if protection and not has_secret:
        raise PreflightFailed(
            f"the driver listens on {host}, which other machines can reach: any of them could run code as this user. Set "
            "TIDEMARK_SPARK_AUTHENTICATE_SECRET to the secret that the cluster's master and workers have "
            '(`spark.authenticate.secret`), or "spark.authenticate": "false" in `spark_extra_conf` if the network is '
            "protected in another way"
        )
    return conf | protection


def _listening_on(host: str) -> dict[str, str]:
    return {"spark.driver.host": host, "spark.driver.bindAddress": host}


def _hosts(master: str) -> list[str]:
    """Return the host names in an address such as `spark://one:7077,two:7077`."""
    named = master.removeprefix("spark://").split(",")
    return [re.sub(r":\d+$", "", name) for name in named]


def _is_loopback(host: str) -> bool:
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address).is_loopback for address in found)

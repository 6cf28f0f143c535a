"""Queries over TLS of an instance, whose batches Spark makes, and of its standby."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from spark_jobs.batch_source import SparkBatchSource
from tests.integration.queries.test_instance_queries import everything, is_level, running, standing_by, value
from tests.support.counting import CountingApp
from tests.support.secured import Authority
from typer.testing import CliRunner

from tidemark.cli.main import build
from tidemark.client import QueryUnavailable, StateClient
from tidemark.processes import wait_until
from tidemark.settings import Settings

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(400)]

KEY = "k00007"
_BEGIN_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


@dataclass
class SparkCountingApp(CountingApp):
    """The application as it really runs: Spark makes the batches of its instances."""

    spark: SparkSession | None = None

    def make_source(self, instance, stop) -> SparkBatchSource:
        return SparkBatchSource(self.spark, instance.plan, instance.settings, 0)


def in_two_files(pem: Path) -> tuple[Path, Path]:
    """A certificate and its private key, each in a file of its own."""
    key, begin, certificate = pem.read_text().partition(_BEGIN_CERTIFICATE)
    files = pem.with_suffix(".crt"), pem.with_suffix(".key")
    for file, text in zip(files, (begin + certificate, key), strict=True):
        file.touch(mode=0o600)
        file.write_text(text)
    return files


@pytest.fixture
def app(
    spark: SparkSession, settings: Settings, admin: AdminClient, unique: Callable[[str], str], tmp_path: Path
) -> SparkCountingApp:
    authority = Authority(tmp_path / "tls")
    certificate, key = in_two_files(authority.signed("server"))
    secured = {
        "query_port": 0,
        "query_timeout_ms": 30_000,
        "query_tls_certificate": str(certificate),
        "query_tls_key": str(key),
        "query_tls_ca": str(authority.file),
    }
    return SparkCountingApp(settings.model_copy(update=secured), admin, unique("tls"), spark=spark)


def urls(client: httpx.Client) -> list[str]:
    """Return the addresses at which the asked process has reached the other holders."""
    tasks = client.get("/v1/metadata", params={"store": "n"}).json()["tasks"]
    copies = [copy for task in tasks for copy in task["copies"] if copy["url"]]
    return sorted({copy["url"] for copy in copies if "position" in copy})


def test_an_instance_and_its_standby_should_answer_over_tls_alone_and_reach_each_other_over_it(
    app: SparkCountingApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = app.for_commands(tmp_path, monkeypatch)

    def shown(*words: str):
        return CliRunner().invoke(build(), ["state", "get", module, "n", KEY, *words])

    app.feed(400, keys=20)
    expected = dict(app.expected)
    with ExitStack() as instance_lives, StateClient(app.name, settings=app.settings) as asked:
        instance = instance_lives.enter_context(running(app))
        url = str(instance.base_url)
        assert url.startswith("https://")
        assert wait_until(lambda: is_level(app, instance), 120)
        assert asked.store("n").get(KEY).value == {"n": expected[KEY]}
        assert json.loads(shown("--json").stdout)["entry"]["value"] == {"n": expected[KEY]}

        # Neither who does not know the authority, nor who speaks without TLS, learns anything.
        stranger = app.settings.model_copy(update={"query_tls_ca": ""})
        with (
            StateClient(app.name, settings=stranger) as asking,
            pytest.raises(QueryUnavailable, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            asking.stores()
        with monkeypatch.context() as without:
            without.setenv("TIDEMARK_QUERY_TLS_CA", "")
            refused = shown()
        assert isinstance(refused.exception, QueryUnavailable)
        assert "CERTIFICATE_VERIFY_FAILED" in str(refused.exception)
        plain = f"http://{instance.base_url.netloc.decode()}/v1/health"
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            httpx.get(plain, timeout=60, trust_env=False)

        with standing_by(app) as standby:
            # Each asks the other: the standby passes a query on to the owner, the instance asks for the copy's position.
            assert wait_until(lambda: value(standby, KEY)[1].get("role") == "active", 60)
            assert value(standby, KEY)[0] == expected[KEY]
            assert wait_until(lambda: urls(instance) == [str(standby.base_url)], 60)
            assert wait_until(lambda: urls(standby) == [url], 60)
            assert str(standby.base_url).startswith("https://")
            instance_lives.close()
            assert wait_until(lambda: value(standby, KEY)[1].get("role") == "standby", 60)
            assert everything(standby) == expected
            assert asked.store("n").get(KEY).value == {"n": expected[KEY]}
            assert "standby in standby-0@" in shown().stdout

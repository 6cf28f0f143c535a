"""A misspelt setting and a secret in a shared file are refused, and the message names the remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemark.errors import InvalidSettings
from tidemark.settings import Settings
from tidemark.settings_names import NOT_SETTINGS, is_secret_name

ROOT = Path(__file__).parents[3]


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "tidemark.toml"
    file.touch()
    monkeypatch.setenv("TIDEMARK_CONFIG", str(file))
    return file


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TIDEMARK_COMMIT_INTERVAL", "TIDEMARK_COMMIT_INTERVAL_MS"),
        ("TIDEMARK_SASL_PASWORD", "TIDEMARK_SASL_PASSWORD"),
        ("tidemark_state_dirs", "TIDEMARK_STATE_DIR"),
        ("TIDEMARK_TOPOLOGIES_PATH", "TIDEMARK_TOPOLOGY_PATH"),
        ("TIDEMARK_", "TIDEMARK_RACK"),
    ],
)
def test_should_refuse_an_unknown_variable_with_the_nearest_name(
    name: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "s3cret")
    with pytest.raises(InvalidSettings, match=rf"variable {name} .* nearest is {nearest} ") as refused:
        Settings.load()
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "nearest"), [("commit_interval", "commit_interval_ms"), ("rto_ms", "rto_s"), ("RTO_S", "rto_s")]
)
def test_should_refuse_an_unknown_name_in_the_file_with_the_nearest(name: str, nearest: str, toml: Path) -> None:
    toml.write_text(f"{name} = 5\n")
    with pytest.raises(InvalidSettings, match=rf"`{name}` in {toml} .* nearest is {nearest} "):
        Settings.load()


def test_should_refuse_a_table_that_is_not_a_setting(toml: Path) -> None:
    toml.write_text("[tidemark]\nrto_s = 5\n")
    with pytest.raises(InvalidSettings, match="`tidemark` in"):
        Settings.load()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('sasl_password = "s3cret"', "sasl_password"),
        ('facts_url = "postgresql://me:s3cret@db/facts"', "facts_url"),
        ('facts_url = "postgresql://db/facts?user=me&password=s3cret"', "facts_url"),
        ('[spark_extra_conf]\n"spark.ssl.keyPassword" = "s3cret"', "spark_extra_conf"),
        ('[spark_extra_conf]\n"spark.hadoop.fs.s3a.secret.key" = "s3cret"', "spark_extra_conf"),
    ],
)
def test_should_refuse_a_secret_in_the_file_without_showing_it(text: str, name: str, toml: Path) -> None:
    toml.write_text(text)
    with pytest.raises(InvalidSettings, match=f"set TIDEMARK_{name.upper()} in the environment") as refused:
        Settings.load()
    assert "s3cret" not in str(refused.value)


def test_should_read_settings_from_the_file_unless_they_are_secret(toml: Path) -> None:
    toml.write_text(
        'facts_url = "postgresql://me@db/facts"\n[spark_extra_conf]\n"spark.executor.memory" = "2g"\n'
        '"spark.ui.enabled" = "false"\n'
    )
    read = Settings.load()
    assert read.facts_url.get_secret_value() == "postgresql://me@db/facts"
    assert read.spark_extra_conf == {"spark.executor.memory": "2g", "spark.ui.enabled": "false"}


def test_should_refuse_a_file_that_is_not_toml(toml: Path) -> None:
    toml.write_text("rto_s: 5\n")
    with pytest.raises(InvalidSettings, match=f"failed to read the settings in {toml}.*correct the file"):
        Settings.load()


def test_should_refuse_a_named_file_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_CONFIG", str(tmp_path / "elsewhere.toml"))
    with pytest.raises(InvalidSettings, match=r"elsewhere\.toml, which does not exist"):
        Settings.load()


def test_should_know_every_variable_that_the_code_names() -> None:
    """A variable that the code reads but the settings refuse could never be set."""
    known = {f"TIDEMARK_{name.upper()}" for name in Settings.model_fields} | set(NOT_SETTINGS)
    places = [
        path
        for folder in ("include", "plugins", "spark_jobs", "dags", "bench", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
    ]
    text = "\n".join(path.read_text() for path in [*places, ROOT / "docker-compose.yaml", ROOT / "Dockerfile"])
    assert len(places) > 100
    assert set(re.findall(r"\bTIDEMARK_[A-Z_]*[A-Z]\b", text)) - known == set()


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.keystore.key.PrivateKey",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.encryption.key",
        "parquet.encryption.key.list",
        "spark.hadoop.fs.s3a.server-side-encryption.key",
        "spark.hadoop.fs.azure.sas.box.lake.blob.core.windows.net",
    ],
)
def test_should_recognise_a_secret_by_its_name(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.username",
        "sasl.oauthbearer.token.endpoint.url",
        "client.id",
        "spark.ui.port",
        "ssl.key.location",
        "ssl.keystore.location",
        "spark.ssl.keyStore",
        "spark.io.encryption.keySizeBits",
        "spark.io.encryption.keygen.algorithm",
        "parquet.encryption.key.material.store.internally",
        "spark.hadoop.fs.azure.account.keyprovider.lake.dfs.core.windows.net",
    ],
)
def test_should_not_treat_other_names_as_secret(name: str) -> None:
    assert not is_secret_name(name)


def test_should_ignore_what_kubernetes_sets_for_a_service_named_tidemark(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"": "tcp://10.0.0.1:9092", "_PROTO": "tcp", "_PORT": "9092", "_ADDR": "10.0.0.1"}
    for service in ("TIDEMARK", "TIDEMARK_WEB"):
        monkeypatch.setenv(f"{service}_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv(f"{service}_SERVICE_PORT", "9092")
        monkeypatch.setenv(f"{service}_SERVICE_PORT_KAFKA", "9092")
        monkeypatch.setenv(f"{service}_PORT", "tcp://10.0.0.1:9092")
        for end, value in address.items():
            monkeypatch.setenv(f"{service}_PORT_9092_TCP{end}", value)
    Settings.load()


def test_should_say_that_a_service_of_kubernetes_has_the_name_of_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_QUERY_PORT", "tcp://10.0.0.1:8088")
    with pytest.raises(InvalidSettings, match="enableServiceLinks: false"):
        Settings.load()


def test_should_still_refuse_a_misspelt_name_with_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP_SERVER", "tcp://10.0.0.1:9092")
    with pytest.raises(InvalidSettings, match="nearest is TIDEMARK_BOOTSTRAP_SERVERS"):
        Settings.load()

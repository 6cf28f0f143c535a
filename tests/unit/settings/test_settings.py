"""Settings from environment, file and running stack; errors that name the setting."""

from __future__ import annotations

import json

import pytest

from tidemark.errors import InvalidSettings
from tidemark.settings import Settings, stack_file


def test_should_let_the_environment_win_over_the_file_and_the_file_over_the_running_stack(tmp_path, monkeypatch):
    toml = tmp_path / "tidemark.toml"
    toml.touch()
    monkeypatch.setenv("TIDEMARK_CONFIG", str(toml))
    monkeypatch.setenv("TIDEMARK_VAR_DIR", str(tmp_path))
    stack_file(tmp_path).write_text(json.dumps({"settings": {"bootstrap_servers": "127.0.0.1:1"}}))
    assert Settings.load().bootstrap_servers == "127.0.0.1:1"
    toml.write_text('bootstrap_servers = "127.0.0.1:2"')
    assert Settings.load().bootstrap_servers == "127.0.0.1:2"
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP_SERVERS", "127.0.0.1:3")
    assert Settings.load().bootstrap_servers == "127.0.0.1:3"


def test_should_name_a_setting_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("TIDEMARK_COMMIT_INTERVAL_MS", "soon")
    with pytest.raises(InvalidSettings, match="TIDEMARK_COMMIT_INTERVAL_MS"):
        Settings.load()


@pytest.mark.parametrize("name", [n for n, field in Settings.model_fields.items() if field.annotation in (int, float)])
def test_should_refuse_an_unusable_number(name):
    with pytest.raises(InvalidSettings, match=f"setting {name}: Input should be greater than"):
        Settings.load(**{name: -2})


@pytest.mark.parametrize("share", [0, 1.5])
def test_should_refuse_a_share_outside_its_range(share):
    with pytest.raises(InvalidSettings, match="setting audit_time_share: Input should be"):
        Settings.load(audit_time_share=share)


def test_should_be_the_same_when_read_from_the_environment_of_another_process(monkeypatch):
    settings = Settings.load(
        sasl_password="s3cret",
        facts_url="postgresql://me:s3cret@db/facts",
        listeners=["alerts:Alert"],
        spark_extra_conf={"spark.x": "1"},
        commit_interval_ms=77,
    )
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == settings
    assert "s3cret" not in repr(settings)

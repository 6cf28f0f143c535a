"""Settings from environment, file and running stack; errors that name the setting."""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path

import pytest
from fsspec.config import apply_config, set_conf_env
from fsspec.implementations.ftp import FTPFileSystem

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


def test_should_find_the_running_stack_in_the_folder_that_the_file_names(tmp_path, monkeypatch):
    toml = tmp_path / "tidemark.toml"
    toml.write_text('var_dir = "~/own"')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(toml))
    monkeypatch.delenv("TIDEMARK_VAR_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / "own"
    own.mkdir()
    stack_file(own).write_text(json.dumps({"settings": {"bootstrap_servers": "127.0.0.1:1"}}))
    found = Settings.load()
    assert (found.var_dir, found.bootstrap_servers) == (own, "127.0.0.1:1")


def test_should_find_the_running_stack_in_a_folder_relative_to_the_project(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_VAR_DIR", "own")
    (tmp_path / "own").mkdir()
    stack_file(tmp_path / "own").write_text(json.dumps({"settings": {"bootstrap_servers": "127.0.0.1:1"}}))
    assert Settings.load().bootstrap_servers == "127.0.0.1:1"


@pytest.mark.parametrize("text", ["[]", "null", "7"])
def test_should_refuse_a_record_of_the_stack_that_is_not_one(text, tmp_path):
    stack_file(tmp_path).write_text(text)
    with pytest.raises(InvalidSettings, match=f"{stack_file(tmp_path)} .*: remove it"):
        Settings.load(var_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STATE_DIR", ""),
        ("VAR_DIR", ""),
        ("BOOTSTRAP_SERVERS", ""),
        ("BOOTSTRAP_SERVERS", " "),
        ("QUERY_PORT", "70000"),
    ],
)
def test_should_refuse_what_can_never_be_used(name, value, monkeypatch):
    monkeypatch.setenv(f"TIDEMARK_{name}", value)
    with pytest.raises(InvalidSettings, match=f"TIDEMARK_{name}"):
        Settings.load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # A JVM takes a number without a unit for bytes, and no unit of two letters.
        ("spark_driver_memory", "1024"),
        ("spark_driver_memory", "1024mb"),
        ("spark_driver_memory", "1p"),
        ("spark_driver_memory", "2 g"),
        ("spark_driver_memory", "0g"),
        ("spark_driver_memory", "\u0661g"),
        ("spark_executor_memory", "2 gb"),
        ("spark_executor_memory", "0g"),
        ("spark_executor_memory", "1gib"),
        ("spark_executor_memory", ""),
    ],
)
def test_should_show_what_to_write_for_a_heap_that_cannot_be_used(name, value):
    with pytest.raises(
        InvalidSettings, match=rf"setting {name}: write a number and its unit.*such as 1g; set TIDEMARK_"
    ):
        Settings.load(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("spark_driver_memory", ["1g", "1536M", "524288k", "1T"]),
        ("spark_executor_memory", ["1g", "1536M", "1024", "2gb", "2GB", "1p", "1073741824b"]),
    ],
)
def test_should_take_every_heap_that_its_jvm_can_have(name, values):
    assert [getattr(Settings.load(**{name: value}), name) for value in values] == values


def test_should_take_an_empty_name_of_the_file_for_none(monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_CONFIG", "")
    assert Settings.load().bootstrap_servers


def test_should_name_a_setting_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("TIDEMARK_COMMIT_INTERVAL_MS", "soon")
    with pytest.raises(InvalidSettings, match="TIDEMARK_COMMIT_INTERVAL_MS"):
        Settings.load()


@pytest.mark.parametrize(
    ("name", "value", "example"),
    [
        ("oncall_approvers", "alice s3cret", '["alice"]'),
        ("listeners", "[s3cret]", '["alice"]'),
        ("kafka", '{"sasl.password": "s3cret"', '{"name": "value"}'),
        ("kafka_java", "s3cret", '{"name": "value"}'),
    ],
)
def test_should_name_a_list_or_mapping_that_is_not_json_without_showing_it(monkeypatch, name, value, example):
    monkeypatch.setenv(f"TIDEMARK_{name.upper()}", value)
    with pytest.raises(InvalidSettings) as refused:
        Settings.load()
    assert str(refused.value).startswith(f"setting {name}: ")
    assert f"such as {example}" in str(refused.value)
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("name", [n for n, field in Settings.model_fields.items() if field.annotation in (int, float)])
def test_should_refuse_an_unusable_number(name):
    with pytest.raises(InvalidSettings, match=f"setting {name}: Input should be greater than"):
        Settings.load(**{name: -2})


@pytest.mark.parametrize(("name", "value"), [("listeners", [1]), ("kafka", {"acks": ["x"]})])
def test_should_name_the_setting_of_which_one_element_is_wrong(name: str, value: object) -> None:
    with pytest.raises(InvalidSettings, match=f"setting {name}: .*set TIDEMARK_{name.upper()} or `{name}` in"):
        Settings.load(**{name: value})


def test_should_make_folders_absolute_where_home_is_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMARK_HOME", ".")
    assert Settings.load().state_dir == tmp_path / "var" / "state"


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


@pytest.mark.parametrize(
    "location",
    [
        "sftp://user:s3cret@nas/x",
        "sftp://user:s3cret/more@nas/x",
        "sftp://user:s3cret#more@nas/x",
        "simplecache::ftp://user:s3cret@nas/x",
        "s3://bucket/x?secret=s3cret",
    ],
)
def test_should_refuse_a_password_in_the_location_of_savepoints_without_showing_it(location):
    with pytest.raises(
        InvalidSettings, match=r"setting savepoint_location: the URL has a password.*FSSPEC_SFTP"
    ) as refused:
        Settings.load(savepoint_location=location)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "location",
    [
        "sftp://user@nas:22/a@b",
        "abfs://box@account.dfs.core.windows.net/x",
        "s3://arn:aws:s3:eu-west-1:1:accesspoint/x",
        "simplecache::s3://bucket/x",
        "memory://x",
    ],
)
def test_should_take_a_location_of_savepoints_without_a_password(location):
    assert Settings.load(savepoint_location=location).savepoint_location == location


def test_should_name_a_variable_from_which_the_file_system_takes_the_password():
    with pytest.raises(InvalidSettings) as refused:
        Settings.load(savepoint_location="sftp://user:s3cret@nas/x")
    name, value = re.search(r"(FSSPEC_\w+)='(.*?)'", str(refused.value)).groups()
    options: dict = {}
    set_conf_env(options, {name.replace("SFTP", "FTP"): value})
    assert apply_config(FTPFileSystem, {"host": "nas"}, options) == {"host": "nas", "password": "…"}

"""The command line and the environment that an instance gets from the provider's hook."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pyspark
import pytest

from tidemark.kafka.java import find
from tidemark.settings import Settings
from tidemark.supervision.instance_files import InstanceFiles, InstanceKey
from tidemark.supervision.launch import Command
from tidemark_airflow.command import CannotSubmit, instance_environment, spark_command

SECRET = "correct-horse-battery"


@pytest.fixture
def files(tmp_path: Path) -> InstanceFiles:
    made = InstanceFiles(tmp_path / "var", InstanceKey("patient-monitoring", 2))
    made.make_folders()
    return made


def command_for(files: InstanceFiles, conn_id: str = "spark_default", **changes: object) -> Command:
    settings = Settings.load(var_dir=files.var_dir, sasl_password=SECRET, **changes)
    return spark_command(settings, "patient_monitoring", files, conn_id)


def test_should_submit_the_instance_with_verified_jars(files: InstanceFiles, spark_jars: list[Path]) -> None:
    command = command_for(files, spark_driver_memory="700m", last_savepoint_timeout_ms=4500)
    assert command.leave_s == 4.5
    line = list(command.argv)
    assert line[0] == "spark-submit"
    assert line[-5] == command.script
    assert line[-4:] == ["--topology", "patient_monitoring", "--instance", "2"]
    assert line[line.index("--driver-memory") + 1] == "700m"
    assert line[line.index("--name") + 1] == "patient-monitoring-2"
    # Tasks run in the driver's JVM, whose class path has the jars.
    assert not any(part.startswith("spark.jars=") for part in line)
    assert f"spark.driver.extraClassPath={':'.join(str(jar) for jar in spark_jars)}" in line
    (options,) = (part for part in line if part.startswith("spark.driver.extraJavaOptions="))
    assert "-XX:+UseParallelGC" in options
    assert "-Xms700m" in options
    assert Path(command.script).parts[-2:] == ("spark_jobs", "stream_instance.py")


def test_should_take_the_master_from_the_settings_when_there_is_no_connection(
    files: InstanceFiles, spark_jars: list[Path]
) -> None:
    command = command_for(files, conn_id="spark_nowhere", spark_master="local[3]")
    assert command.argv[command.argv.index("--master") + 1] == "local[3]"
    assert command.environment["TIDEMARK_SPARK_MASTER"] == "local[3]"
    assert command.environment["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_should_take_the_master_from_the_connection(
    files: InstanceFiles, spark_jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "spark", "host": "spark://spark-master", "port": 7077}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    command = command_for(files)
    assert command.argv[command.argv.index("--master") + 1] == "spark://spark-master:7077"
    assert command.environment["TIDEMARK_SPARK_MASTER"] == "spark://spark-master:7077"
    assert "SPARK_LOCAL_IP" not in command.environment
    assert f"spark.jars={','.join(str(jar) for jar in spark_jars)}" in command.argv


def test_should_refuse_deploy_mode_cluster_because_its_driver_cannot_be_watched(
    files: InstanceFiles, spark_jars: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "spark", "host": "spark://spark-master", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with pytest.raises(CannotSubmit, match="use deploy-mode client"):
        command_for(files)


def test_should_keep_secrets_out_of_the_command_line_and_the_log(
    files: InstanceFiles, spark_jars: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = command_for(files, spark_extra_conf={"spark.ssl.keyPassword": SECRET})
    assert SECRET not in " ".join(command.argv)
    assert SECRET not in "".join(capsys.readouterr())
    assert command.environment["TIDEMARK_SASL_PASSWORD"] == SECRET
    assert SECRET not in repr(command)
    properties = Path(command.argv[command.argv.index("--properties-file") + 1])
    assert properties.read_text() == f"spark.ssl.keyPassword={SECRET}\n"
    assert stat.S_IMODE(properties.stat().st_mode) == 0o600


@pytest.mark.parametrize("value", ["ab\\cd", "a\nspark.ui.enabled=true", "#!=x", "a\\u0062"])
def test_should_give_spark_each_extra_setting_as_it_is(
    files: InstanceFiles, spark_jars: list[Path], value: str
) -> None:
    command = command_for(files, spark_extra_conf={"spark.driver.extraClassPath": value})
    properties = command.argv[command.argv.index("--properties-file") + 1]
    # Spark's launcher reads the file and prints the command of the driver's JVM.
    spark = Path(pyspark.__path__[0])
    launcher = [str(find().executable), "-cp", f"{spark}/jars/*", "org.apache.spark.launcher.Main"]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--properties-file", properties, command.script]
    environment = os.environ | {"SPARK_HOME": str(spark), "SPARK_SCALA_VERSION": "2.13"}
    printed = subprocess.run([*launcher, *submit], env=environment, capture_output=True, check=True, timeout=120)
    arguments = printed.stdout.decode().split("\0")
    assert arguments[arguments.index("-cp") + 1].startswith(f"{value}:")


def test_should_not_pass_airflows_own_keys_to_a_stream(files: InstanceFiles) -> None:
    inherited = {"AIRFLOW__API_AUTH__JWT_SECRET": SECRET, "_AIRFLOW_X": SECRET, "__AIRFLOW_Y": SECRET, "LANG": "C"}
    environment = instance_environment(Settings.load(), inherited)
    assert SECRET not in environment.values()
    assert environment["LANG"] == "C"
    assert environment["PYSPARK_PYTHON"]
    first = environment["PYTHONPATH"].split(os.pathsep)[0]
    assert Path(first).is_absolute()
    assert Path(first).name == "include"

"""The command lines and the environment of an instance, built with the Spark provider's hook, and of a standby."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemark.kafka.properties import as_properties
from tidemark.processes import without_airflow
from tidemark.settings import Settings, project_root
from tidemark.supervision.instance_files import InstanceFiles
from tidemark.supervision.launch import Command
from tidemark.temporary_folder import temporary_folders

INSTANCE_SCRIPT = Path("spark_jobs") / "stream_instance.py"
STANDBY_MODULE = "tidemark.cli.main"


class CannotSubmit(Exception):
    """The Spark connection asks for something that cannot be supervised. The message says what to change."""


def spark_command(
    settings: Settings, topology: str, files: InstanceFiles, conn_id: str, script: Path | None = None
) -> Command:
    """Return the command that starts an instance through spark-submit. Blocks while jars are downloaded the first time.

    The master comes from the Airflow connection `conn_id`, or from the setting `spark_master` if there is no such
    connection. Raises `CannotSubmit`.
    """
    from tidemark.kafka import jars
    from tidemark.spark_driver import driver_jvm_conf

    spark_jars = jars.ensure("spark", settings)
    application = str(script or project_root() / INSTANCE_SCRIPT)
    hook = _submit_hook(
        conn_id,
        settings,
        spark_jars,
        conf=dict(driver_jvm_conf(settings, spark_jars)),
        driver_memory=settings.spark_driver_memory,
        name=str(files.key),
        properties_file=_write_properties(files, settings.spark_extra_conf),
        application_args=["--topology", topology, "--instance", str(files.key.instance)],
    )
    argv, master = hook.command(application)
    environment = instance_environment(settings, os.environ)
    environment["TIDEMARK_SPARK_MASTER"] = master
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    leave_s = settings.last_savepoint_timeout_ms / 1000
    temporary = temporary_folders(settings.state_dir, str(files.key))
    return Command(tuple(argv), environment, project_root(), application, temporary, leave_s)


def standby_command(settings: Settings, topology: str, files: InstanceFiles) -> Command:
    """Return the command that starts a standby: the one that a person types, in the environment of an instance."""
    arguments = ("standby", "run", topology, "--number", str(files.key.instance))
    environment = instance_environment(settings, os.environ)
    # The part before the last dash is the application, as in the names of instances and jobs.
    temporary = temporary_folders(settings.state_dir, f"{files.key.application_id}-standby{files.key.instance}")
    return Command(
        (sys.executable, "-m", STANDBY_MODULE, *arguments), environment, project_root(), STANDBY_MODULE, temporary
    )


def instance_environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an instance or a standby: `inherited` without Airflow's variables, which may be secrets."""
    root = project_root()
    environment = without_airflow(inherited)
    environment.update(settings.as_environment())
    plugins = Path(__file__).resolve().parents[1]
    environment["PYTHONPATH"] = os.pathsep.join([str(root / "include"), str(root), str(plugins)])
    environment["PYTHONUNBUFFERED"] = "1"
    environment["TIDEMARK_HOME"] = str(root)
    # spark-submit is a script in the folder of this Python.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    return environment


def _write_properties(files: InstanceFiles, extra: Mapping[str, str]) -> str | None:
    """Write extra Spark settings, which may be secrets, to a private file instead of the command line."""
    if not extra:
        return None
    files.make_folders()
    path = files.spark_properties
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as properties:
        properties.write(as_properties(extra))
    return str(path)


def _submit_hook(conn_id: str, settings: Settings, jars: Sequence[Path], **options: Any):  # type: ignore[no-untyped-def]
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    from tidemark.spark_driver import executor_jars_conf

    class InstanceSubmitHook(SparkSubmitHook):
        """The provider's hook, used only to build the command."""

        def _resolve_connection(self) -> dict[str, object]:
            try:
                self.get_connection(conn_id)
            except AirflowNotFoundException:
                # The provider would silently use YARN.
                self.spark_binary = "spark-submit"
                return {**super()._resolve_connection(), "master": settings.spark_master, "deploy_mode": "client"}
            return dict(super()._resolve_connection())

        def command(self, application: str) -> tuple[list[str], str]:
            """Return the command line and the master that is in it."""
            if self._connection["deploy_mode"] == "cluster":
                raise CannotSubmit(
                    f"connection {conn_id} has deploy-mode cluster, in which the driver runs on a machine that Airflow "
                    f"cannot watch; use deploy-mode client"
                )
            master = str(self._connection["master"])
            self._conf |= executor_jars_conf(master, jars)
            return self._build_spark_submit_command(application), master

    return InstanceSubmitHook(conn_id=conn_id, **options)

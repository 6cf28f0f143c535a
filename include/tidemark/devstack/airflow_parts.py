"""Airflow's four processes on loopback: their environment, their commands, their secrets, their database.

`airflow standalone` is not used: it listens on all addresses, starts dozens of workers, and leaves orphans.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from tidemark import processes
from tidemark.atomic_file import replace_file
from tidemark.devstack.ports import LOOPBACK
from tidemark.errors import PreflightFailed
from tidemark.kafka import java
from tidemark.names import MAINTENANCE_POOL
from tidemark.settings import Settings, project_root

USERS = {"admin": "admin", "oncall": "user", "guest": "viewer"}
ADMINISTRATOR = "admin"
AIRFLOW_DATABASE = "AIRFLOW_METADATA_DATABASE_URL"
"""The environment variable in which `history_cleanup` finds the URL of Airflow's own database."""
PARALLELISM = 16
"""Slots of the executor. Maintenance and the DAGs of restores and changes together leave some of them for streams."""
MAINTENANCE_SLOTS = 2
"""Slots of the pool of checks, audits, drills and savepoints."""
LOCKED_S = 30
"""How many seconds each part of Airflow waits for the lock of their shared SQLite database. After that a request fails with
status 500, or a task fails. SQLite's default of 5 s is too short on a loaded machine."""

PARTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server", "--workers", "1"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


def home(settings: Settings) -> Path:
    """Return Airflow's own folder."""
    return settings.var_dir / "airflow"


def password_file(settings: Settings) -> Path:
    """Return the path of the file with users and passwords (JSON), which only its owner can read."""
    return home(settings) / "passwords.json"


def secrets_file(settings: Settings) -> Path:
    """Return the path of the file with the keys that the parts share (JSON), which only its owner can read."""
    return home(settings) / "secrets.json"


def base_environment(settings: Settings, stack_id: str) -> dict[str, str]:
    """Return the environment that every process of a stack inherits. It contains the settings' password."""
    root = project_root()
    found = java.find()
    inherited = processes.without_airflow(os.environ)
    path = [str(Path(sys.executable).parent), str(found.home / "bin"), inherited.get("PATH", "")]
    no_proxy = [
        name for name in (inherited.get("NO_PROXY") or inherited.get("no_proxy", ""), LOOPBACK, "localhost") if name
    ]
    return {
        **inherited,
        **settings.as_environment(),
        processes.MARK: stack_id,
        # Airflow sets process titles, which by default overwrites the environment that the mark is read from.
        "SPT_NOENV": "1",
        "PATH": os.pathsep.join(path),
        "JAVA_HOME": str(found.home),
        "PYTHONPATH": os.pathsep.join(str(root / part) for part in ("include", "", "plugins")),
        "NO_PROXY": ",".join(no_proxy),
        "no_proxy": ",".join(no_proxy),
    }


def environment(settings: Settings, stack_id: str, port: int) -> dict[str, str]:
    """Return the environment of Airflow's parts: `base_environment`, and every setting of Airflow that matters here."""
    folder = home(settings)
    root = project_root()
    shared = _secrets(settings)
    url = f"http://{LOOPBACK}:{port}"
    database = f"sqlite:///{folder / 'airflow.db'}?timeout={LOCKED_S}"
    return base_environment(settings, stack_id) | {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(root / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(root / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(password_file(settings)),
        "AIRFLOW__CORE__FERNET_KEY": shared["fernet_key"],
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        # Airflow hides its own variable from tasks, but one of them cleans this database.
        AIRFLOW_DATABASE: database,
        # A worker gives up its task when requests to the API server end by their time limit, which is 5 s by default.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": str(LOCKED_S + 10),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs"),
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__SECRET_KEY": shared["api_secret_key"],
        "AIRFLOW__API_AUTH__JWT_SECRET": shared["jwt_secret"],
    }


def command(part: str) -> list[str]:
    """Return the command line of one part."""
    return [str(Path(sys.executable).parent / "airflow"), *PARTS[part]]


def prepare(settings: Settings, environment: dict[str, str]) -> None:
    """Create passwords, database and pool, or keep them; migrate after an upgrade. Blocks (15 s the first time).

    Raises `PreflightFailed` with Airflow's reason if the database cannot be migrated or the pool cannot be created.
    """
    folder = home(settings)
    folder.mkdir(parents=True, exist_ok=True)
    if not password_file(settings).exists():
        passwords = {user: secrets.token_urlsafe(12) for user in USERS}
        replace_file(password_file(settings), json.dumps(passwords), synced=False, private=True)
    stamp = folder / "migrated"
    wanted = f"{importlib.metadata.version('apache-airflow')} {MAINTENANCE_POOL}={MAINTENANCE_SLOTS}"
    if (folder / "airflow.db").exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    _airflow(folder, environment, "migrate.log", "Airflow's database could not be migrated", "db", "migrate")
    pool = ("pools", "set", MAINTENANCE_POOL, str(MAINTENANCE_SLOTS), "checks, audits, drills and savepoints")
    _airflow(folder, environment, "pool.log", f"Airflow's pool {MAINTENANCE_POOL} could not be created", *pool)
    replace_file(stamp, wanted, synced=False, private=True)


def _airflow(folder: Path, environment: dict[str, str], log_name: str, failure: str, *arguments: str) -> None:
    log = folder / log_name
    with log.open("w") as opened:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "airflow"), *arguments],
            env=environment,
            cwd=folder,
            stdout=opened,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        reason = next((line for line in reversed(log.read_text().splitlines()) if line.strip()), "no reason given")
        raise PreflightFailed(f"{failure}: {reason.strip()} (log: {log})")


def _secrets(settings: Settings) -> dict[str, str]:
    """Return the keys, which are random and created once."""
    file = secrets_file(settings)
    read: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    # Fernet's key is 32 bytes, in base64 with its padding.
    made = {name: secrets.token_urlsafe(48) for name in ("jwt_secret", "api_secret_key")} | {
        "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    }
    if not made.keys() <= read.keys():
        read = made | read
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(read), synced=False, private=True)
    return read

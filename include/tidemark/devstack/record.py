"""`var/stack.json`: the file that records what `tidemark up` started, and with which addresses."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidemark.atomic_file import replace_file
from tidemark.errors import PreflightFailed
from tidemark.processes import Identity
from tidemark.settings import stack_file


@dataclass(frozen=True)
class Service:
    """One recorded process; `port` is 0 if it listens on none."""

    pid: int
    started_after_boot_s: float
    boot_id: str
    port: int
    log: str

    @property
    def identity(self) -> Identity:
        """Return the identity of the process, with which it can be checked and ended."""
        return Identity(self.pid, self.started_after_boot_s, self.boot_id)


@dataclass(frozen=True)
class AirflowAccess:
    """The address of Airflow's page and its user; the passwords are in a file that only its owner can read."""

    url: str
    username: str
    password_file: str


@dataclass
class StackRecord:
    """The record of a stack. Every later command reads `settings` through `Settings.load`.

    `airflow_settings` is the digest of the settings with which Airflow's parts were started; empty if none was.
    """

    stack_id: str
    started_at: float
    settings: dict[str, str] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    airflow: AirflowAccess | None = None
    airflow_settings: str = ""


def load(var_dir: Path) -> StackRecord | None:
    """Return the recorded stack; None if there is none. Raises `PreflightFailed` if the file is not such a record."""
    file = stack_file(var_dir)
    try:
        read = json.loads(file.read_text())
        return StackRecord(
            stack_id=read["stack_id"],
            started_at=read["started_at"],
            settings=read.get("settings", {}),
            services={name: Service(**service) for name, service in read.get("services", {}).items()},
            airflow=AirflowAccess(**read["airflow"]) if read.get("airflow") else None,
            airflow_settings=read.get("airflow_settings", ""),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise PreflightFailed(
            f"{file} is not a record of a stack ({error}): "
            "look with `ps` for processes that are left over, then delete it"
        ) from error


def save(record: StackRecord, var_dir: Path) -> None:
    """Write the record atomically; only its owner can read it."""
    file = stack_file(var_dir)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(asdict(record), indent=2) + "\n", synced=False, private=True)


@contextmanager
def locked(var_dir: Path) -> Iterator[None]:
    """Allow only one `up` or `down` at a time; raises `PreflightFailed` while another one works."""
    try:
        var_dir.mkdir(parents=True, exist_ok=True)
        opened = (var_dir / "stack.lock").open("a")
    except OSError as error:
        raise PreflightFailed(
            f"cannot write {var_dir} ({error.strerror}): set TIDEMARK_VAR_DIR to a folder that can be written"
        ) from error
    with opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreflightFailed(
                f"another `tidemark up` or `down` works on {var_dir}: wait for it, then run this again"
            ) from None
        yield

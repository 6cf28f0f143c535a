"""What the facts about a machine mean: a line for each subject, with what to do about it. Pure functions."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.filesize import decimal


class Health(StrEnum):
    """From best to worst. A problem keeps something from working; a warning may do so, or hides what could be known."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Diagnosis:
    """One line: the subject, what was found, and what to do, which is empty if the subject is healthy."""

    subject: str
    health: Health
    found: str
    remedy: str = ""


def healthy(subject: str, found: str) -> Diagnosis:
    """Return a line with nothing to do."""
    return Diagnosis(subject, Health.OK, found)


PYTHON = (3, 11)
LEAST_FREE_BYTES = 1_000_000_000
"""Free space below which a start or a restore is likely to fail."""
WARNED_OFFSET_MS = 2_000
BAD_OFFSET_MS = 60_000
"""Differences of clocks. Retention is by the brokers' clocks, and lag, ages and time-outs compare them with this one."""
_NAMED = 3


def judge_python(version: tuple[int, int, int]) -> Diagnosis:
    """Judge the version of the interpreter: the locked packages were only measured with one."""
    found = ".".join(map(str, version))
    if version[:2] == PYTHON:
        return healthy("Python", found)
    wanted = ".".join(map(str, PYTHON))
    return Diagnosis("Python", Health.PROBLEM, found, f"the packages are locked for Python {wanted}: run `make setup`")


def judge_packages(locked: Mapping[str, str] | None, installed: Mapping[str, str]) -> Diagnosis:
    """Compare installed versions with those of the lock, by normalised name; None if there is no lock to compare with."""
    subject = "Python packages"
    if locked is None:
        return Diagnosis(
            subject, Health.WARNING, "there is no requirements.txt to compare them with", "run this in the checkout"
        )
    wrong = [
        f"{name} {installed.get(name, 'missing')} instead of {version}"
        for name, version in sorted(locked.items())
        if installed.get(name) != version
    ]
    if not wrong:
        return healthy(subject, f"{len(locked)}, as in requirements.txt")
    more = f", and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return Diagnosis(subject, Health.PROBLEM, ", ".join(wrong[:_NAMED]) + more, "run `make setup`")


def judge_jars(set_name: str, missing: Sequence[str], total: int, folder: Path) -> Diagnosis:
    """Judge a set of jars. `missing` are those that are not there or have another checksum."""
    subject = f"jars of {set_name.capitalize()}"
    if not missing:
        return healthy(subject, f"{total}, all with the right checksum, in {folder}")
    found = f"{len(missing)} of {total} are missing or differ in {folder}, such as {missing[0]}"
    return Diagnosis(subject, Health.PROBLEM, found, f"run `tidemark jars {set_name}`")


@dataclass(frozen=True)
class PortState:
    """A port: who should listen on it, whether that process lives, and whether the port is free."""

    service: str
    port: int
    is_owner_alive: bool
    is_free: bool


def judge_port(state: PortState) -> Diagnosis:
    """Judge one port. `tidemark up` takes another one if it is taken."""
    subject = f"port {state.port}"
    if state.is_owner_alive and not state.is_free:
        return healthy(subject, f"used by {state.service}")
    if state.is_owner_alive:
        found = f"{state.service} runs and does not listen on it"
        return Diagnosis(
            subject, Health.WARNING, found, "wait until it has started, or see its log (`tidemark status`)"
        )
    if state.is_free:
        return healthy(subject, f"free for {state.service}")
    found = f"taken by another program, so `tidemark up` chooses another one for {state.service}"
    return Diagnosis(subject, Health.WARNING, found, f"end the program if {state.service} is to have this port")


def judge_disk(name: str, folder: Path, free_bytes: int, state_bytes: int) -> Diagnosis:
    """Judge the free space of a folder that holds `state_bytes` of state. A restore builds as much beside it, and compares."""
    subject = f"disk of {name}"
    found = f"{decimal(free_bytes)} free in {folder}"
    if free_bytes < LEAST_FREE_BYTES:
        return Diagnosis(
            subject, Health.PROBLEM, found, "free disk space: `tidemark clean plan NAME`, or a larger disk"
        )
    if free_bytes < 2 * state_bytes:
        found += f", beside {decimal(state_bytes)} of state"
        return Diagnosis(subject, Health.WARNING, found, "a restore may need twice the state: free disk space")
    return healthy(subject, found)


def judge_permissions(modes: Mapping[Path, int]) -> Diagnosis:
    """Judge the modes of files and folders that hold personal data or secrets."""
    subject = "permissions"
    if not modes:
        return healthy(subject, "there is nothing private yet")
    opened = sorted(path for path, mode in modes.items() if mode & (stat.S_IRWXG | stat.S_IRWXO))
    if not opened:
        return healthy(subject, f"{len(modes)} private files and folders are closed to other users")
    more = f", and {len(opened) - _NAMED} more" if len(opened) > _NAMED else ""
    named = ", ".join(f"{path} ({stat.S_IMODE(modes[path]):04o})" for path in opened[:_NAMED])
    remedy = f"run `chmod -R go-rwx {' '.join(map(str, opened))}`"
    return Diagnosis(subject, Health.PROBLEM, f"other users can open {named}{more}", remedy)


def judge_brokers(addresses: str, brokers: int, release: str | None, offline: Sequence[str]) -> Diagnosis:
    """Judge brokers that answer. `offline` are partitions without a leader; `release` is None if it could not be asked for."""
    kafka = "Kafka" if release is None else f"Kafka {release}"
    found = f"{brokers} of {kafka} at {addresses}"
    if not offline:
        return healthy("brokers", found)
    more = f", and {len(offline) - _NAMED} more" if len(offline) > _NAMED else ""
    found += f"; no broker leads {', '.join(offline[:_NAMED])}{more}"
    return Diagnosis("brokers", Health.PROBLEM, found, "start the brokers that hold these partitions")


def judge_silence(addresses: str, reason: str, *, is_default: bool, is_recorded: bool) -> Diagnosis:
    """Judge brokers that do not answer. `is_default`: no address was configured; `is_recorded`: `tidemark up` started one."""
    if is_default and not is_recorded:
        return Diagnosis(
            "brokers", Health.WARNING, f"none was started here, none answers at {addresses}", "run `tidemark up`"
        )
    remedy = "run `tidemark up`" if is_recorded else "start them, or correct TIDEMARK_BOOTSTRAP_SERVERS, TLS and login"
    return Diagnosis("brokers", Health.PROBLEM, f"none answers at {addresses}: {reason}", remedy)


def judge_clock(began_ms: int, broker_ms: int | None, ended_ms: int) -> Diagnosis:
    """Compare the clock of the active controller with this one, between whose two readings it was read."""
    subject = "clock"
    if broker_ms is None:
        found = "could not be compared with the brokers'"
        return Diagnosis(subject, Health.WARNING, found, "give this user the right to describe the cluster")
    ahead_ms, behind_ms = broker_ms - ended_ms, began_ms - broker_ms
    apart_ms = max(ahead_ms, behind_ms)
    if apart_ms < WARNED_OFFSET_MS:
        most_ms = max(broker_ms - began_ms, ended_ms - broker_ms)
        return healthy(subject, f"within {most_ms / 1000:.1f} s of the brokers'")
    found = f"the brokers' is {apart_ms / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'} this one"
    health = Health.PROBLEM if apart_ms >= BAD_OFFSET_MS else Health.WARNING
    return Diagnosis(subject, health, found, "synchronise both machines with NTP")


def judge_airflow(url: str | None, unhealthy: Sequence[str], parts: int) -> Diagnosis:
    """Judge the recorded Airflow, None if `tidemark up` has started none. `unhealthy` are the parts that report no health."""
    if url is None:
        return Diagnosis("Airflow", Health.WARNING, "none was started here", "run `tidemark up`")
    if not unhealthy:
        return healthy("Airflow", f"{parts} parts healthy at {url}")
    return Diagnosis(
        "Airflow", Health.PROBLEM, f"not healthy at {url}: {', '.join(unhealthy)}",
        "run `tidemark up`; if it stays so, see the logs that `tidemark status --json` names",
    )  # fmt: skip

"""What the facts about a machine mean, at the borders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.operations.machine.diagnosis import (
    BAD_OFFSET_MS,
    LEAST_FREE_BYTES,
    WARNED_OFFSET_MS,
    Health,
    PortState,
    judge_airflow,
    judge_brokers,
    judge_clock,
    judge_disk,
    judge_jars,
    judge_packages,
    judge_permissions,
    judge_port,
    judge_python,
    judge_silence,
)

OK, WARNING, PROBLEM = Health.OK, Health.WARNING, Health.PROBLEM
HERE = Path("/here")


@pytest.mark.parametrize(("version", "health"), [((3, 10, 9), PROBLEM), ((3, 11, 0), OK), ((3, 12, 0), PROBLEM)])
def test_only_the_measured_python_should_be_ok(version: tuple[int, int, int], health: Health) -> None:
    assert judge_python(version).health is health


@pytest.mark.parametrize(
    ("installed", "health", "found"),
    [
        ({"a": "1", "b": "2", "c": "9"}, OK, "2, as in requirements.txt"),
        ({"a": "1", "b": "3"}, PROBLEM, "b 3 instead of 2"),
        ({"b": "2"}, PROBLEM, "a missing instead of 1"),
    ],
)
def test_packages_should_be_those_of_the_lock(installed: dict[str, str], health: Health, found: str) -> None:
    said = judge_packages({"a": "1", "b": "2"}, installed)
    assert (said.health, said.found) == (health, found)


def test_of_many_wrong_packages_some_should_be_named_and_the_others_counted() -> None:
    said = judge_packages(dict.fromkeys("abcde", "1"), {})
    assert said.found.startswith("a missing instead of 1, b missing")
    assert said.found.endswith(", and 2 more")
    assert said.remedy == "run `make setup`"


def test_without_a_lock_there_should_be_a_warning() -> None:
    assert judge_packages(None, {"a": "1"}).health is WARNING


def test_missing_jars_should_be_counted_and_the_command_named() -> None:
    assert judge_jars("kafka", [], 40, HERE).health is OK
    said = judge_jars("kafka", ["x.jar", "y.jar"], 40, HERE)
    assert (said.health, said.remedy) == (PROBLEM, "run `tidemark jars kafka`")
    assert said.found == "2 of 40 are missing or differ in /here, such as x.jar"


@pytest.mark.parametrize(
    ("is_owner_alive", "is_free", "health", "found"),
    [
        (True, False, OK, "used by broker"),
        (False, True, OK, "free for broker"),
        (True, True, WARNING, "broker runs and does not listen on it"),
        (False, False, WARNING, "taken by another program"),
    ],
)
def test_a_port_should_be_its_owners_or_free(is_owner_alive: bool, is_free: bool, health: Health, found: str) -> None:
    said = judge_port(PortState("broker", 9092, is_owner_alive, is_free))
    assert (said.subject, said.health) == ("port 9092", health)
    assert said.found.startswith(found)
    assert (said.remedy == "") is (health is OK)


@pytest.mark.parametrize(
    ("free", "state", "health"),
    [
        (LEAST_FREE_BYTES - 1, 0, PROBLEM),
        (LEAST_FREE_BYTES, 0, OK),
        (4 * LEAST_FREE_BYTES - 1, 2 * LEAST_FREE_BYTES, WARNING),
        (4 * LEAST_FREE_BYTES, 2 * LEAST_FREE_BYTES, OK),
    ],
)
def test_a_disk_should_have_room_for_a_restore(free: int, state: int, health: Health) -> None:
    said = judge_disk("state_dir", HERE, free, state)
    assert (said.health, said.remedy == "") == (health, health is OK)


def test_what_others_can_open_should_be_named_with_its_mode_and_the_command() -> None:
    closed = {Path("/var"): 0o40700, Path("/var/facts.db"): 0o100600}
    assert judge_permissions(closed).health is OK
    assert judge_permissions({}).health is OK
    for mode in (0o100640, 0o100604, 0o100601):
        said = judge_permissions({**closed, Path("/var/passwords.json"): mode})
        assert said.health is PROBLEM
        assert f"/var/passwords.json ({mode & 0o7777:04o})" in said.found
        assert said.remedy == "run `chmod -R go-rwx /var/passwords.json`"


def test_partitions_without_a_leader_should_be_a_problem_of_the_brokers() -> None:
    assert judge_brokers("b:1", 3, "4.3", []).found == "3 of Kafka 4.3 at b:1"
    assert judge_brokers("b:1", 3, None, []).found == "3 of Kafka at b:1"
    said = judge_brokers("b:1", 2, "4.3", ["a[0]", "a[1]", "b[0]", "c[0]"])
    assert said.health is PROBLEM
    assert said.found.endswith("no broker leads a[0], a[1], b[0], and 1 more")


@pytest.mark.parametrize(
    ("is_default", "is_recorded", "health", "remedy"),
    [
        (True, False, WARNING, "run `tidemark up`"),
        (True, True, PROBLEM, "run `tidemark up`"),
        (False, True, PROBLEM, "run `tidemark up`"),
        (False, False, PROBLEM, "start them, or correct TIDEMARK_BOOTSTRAP_SERVERS, TLS and login"),
    ],
)
def test_silent_brokers_should_be_a_problem_unless_none_was_ever_wanted(
    is_default: bool, is_recorded: bool, health: Health, remedy: str
) -> None:
    said = judge_silence("b:1", "no route", is_default=is_default, is_recorded=is_recorded)
    assert (said.health, said.remedy) == (health, remedy)


AT = 1_700_000_000_000


@pytest.mark.parametrize(
    ("broker_ms", "health", "found"),
    [
        # It was read at some time of the three seconds that the question took.
        (AT, OK, "within 3.0 s of the brokers'"),
        (AT + 1_500, OK, "within 1.5 s of the brokers'"),
        (AT + 3_000, OK, "within 3.0 s of the brokers'"),
        (AT + 3_000 + WARNED_OFFSET_MS - 1, OK, "within 5.0 s of the brokers'"),
        (AT + 3_000 + WARNED_OFFSET_MS, WARNING, "the brokers' is 2.0 s ahead of this one"),
        (AT - WARNED_OFFSET_MS + 1, OK, "within 5.0 s of the brokers'"),
        (AT - WARNED_OFFSET_MS, WARNING, "the brokers' is 2.0 s behind this one"),
        (AT - BAD_OFFSET_MS + 1, WARNING, "the brokers' is 60.0 s behind this one"),
        (AT - BAD_OFFSET_MS, PROBLEM, "the brokers' is 60.0 s behind this one"),
        (None, WARNING, "could not be compared with the brokers'"),
    ],
)
def test_clocks_should_differ_only_if_no_moment_of_the_question_explains_it(
    broker_ms: int | None, health: Health, found: str
) -> None:
    said = judge_clock(AT, broker_ms, AT + 3_000)
    assert (said.health, said.found) == (health, found)


def test_airflow_should_be_healthy_in_all_parts_or_not_started() -> None:
    assert judge_airflow(None, [], 4).health is WARNING
    assert judge_airflow("http://a", [], 4).found == "4 parts healthy at http://a"
    said = judge_airflow("http://a", ["scheduler"], 4)
    assert (said.health, said.found) == (PROBLEM, "not healthy at http://a: scheduler")

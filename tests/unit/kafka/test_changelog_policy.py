"""A changelog keeps what its store may still be rebuilt from."""

from __future__ import annotations

import pytest

from tidemark.kafka.topic_config import DAY_MS, changelog_policies, changelog_policy, repartition_config
from tidemark.topology.plan import StoreKind, StoreSpec
from tidemark.topology_loader import load


def test_should_keep_a_window_changelog_a_day_longer_than_its_store() -> None:
    policy = changelog_policy(StoreSpec("s", StoreKind.WINDOW, 6 * 3_600_000, 3 * 3_600_000))
    assert policy.retention_ms == 6 * 3_600_000 + DAY_MS
    assert policy.config()["cleanup.policy"] == "compact,delete"
    assert policy.config()["retention.ms"] == "108000000"


def test_should_never_delete_from_a_key_value_changelog() -> None:
    policy = changelog_policy(StoreSpec("s", StoreKind.KEY_VALUE, None, None))
    assert policy.retention_ms is None
    assert policy.config()["cleanup.policy"] == "compact"
    assert "retention.ms" not in policy.config()


def test_should_keep_ten_minutes_uncompacted_and_tombstones_for_a_day() -> None:
    for policy in changelog_policies(load("patient_monitoring").plan()).values():
        assert policy.config()["min.compaction.lag.ms"] == "600000"
        assert policy.config()["delete.retention.ms"] == str(DAY_MS)


@pytest.mark.parametrize(
    "config",
    [
        changelog_policy(StoreSpec("s", StoreKind.WINDOW, 6 * 3_600_000, 3 * 3_600_000)).config(),
        changelog_policy(StoreSpec("s", StoreKind.KEY_VALUE, None, None)).config(),
        repartition_config(),
    ],
)
def test_should_delete_no_state_when_the_broker_limits_topic_sizes(config: dict[str, str]) -> None:
    assert config["retention.bytes"] == "-1"


def test_should_find_the_policy_of_a_store() -> None:
    plan = load("patient_monitoring").plan()
    assert list(changelog_policies(plan)) == [store.name for store in plan.stores]

"""A standby, the checks and a drill on a broker with ACLs need what `tidemark acls` prints for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.integration.security.test_acls import Guarded, max_counts
from tests.integration.standby.test_standby_description import is_level, standing_by
from tests.support.secured import Secured, binding, known_acls
from tests.system.drill.running import running

from tidemark.checks.compaction_sampling import check_compaction
from tidemark.checks.durability_sampling import check_durability
from tidemark.checks.lag_sampling import check_lag
from tidemark.checks.retention_sampling import check_retention
from tidemark.clock import wall_clock_ms
from tidemark.drill.drill import Drill, DrillOptions
from tidemark.errors import PreflightFailed
from tidemark.kafka import records_at
from tidemark.kafka.acls import CLUSTER, Acl, least_acls
from tidemark.names import TopicPartition
from tidemark.operations.context import OperationContext
from tidemark.processes import wait_until
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.store_sizes import topic_bytes
from tidemark.verdict import Verdict

pytestmark = [pytest.mark.broker, pytest.mark.timeout(360)]


@pytest.fixture
def guarded(guarded_broker: Secured, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[Guarded]:
    """An application that has committed, as the user `app` with what an instance needs."""
    made = Guarded(guarded_broker, tmp_path, unique("acl"))
    made.allow(made.acls)
    made.app.feed(300)
    made.run()
    assert max_counts(made.app) == made.app.expected
    yield made
    # All applications of this broker share the cluster.
    known = known_acls(guarded_broker.admin)
    for acl in beyond(made):
        if acl.resource == CLUSTER and binding(acl) in known:
            made.deny(acl)


def beyond(guarded: Guarded) -> list[Acl]:
    """The ACLs that `--audits` prints in addition to those of an instance."""
    return sorted(set(least_acls(guarded.app.plan, 1, audits=True)) - set(guarded.acls))


def test_should_need_no_more_acls_for_a_standby_than_for_an_instance(guarded: Guarded) -> None:
    app = SimpleNamespace(plan=guarded.app.plan, settings=guarded.settings(), id=guarded.app.name)
    with standing_by(app) as ended:
        assert wait_until(lambda: ended or is_level(app, 0), 60)
    assert ended == []


def test_should_need_for_checks_and_drills_the_acls_that_are_printed_for_audits(guarded: Guarded) -> None:
    guarded.allow(beyond(guarded))
    app, settings = guarded.app, guarded.settings()
    assert check_durability(app.plan, settings)
    for check in (check_compaction, check_lag, check_retention):
        assert {finding.verdict for finding in check(app.plan, settings, "counting")} == {Verdict.OK}
    sizes = topic_bytes([f"{app.name}-n-changelog"], settings)
    assert sum(sizes.of.values()) > 0, sizes.why
    # The instance that is drilled, and what feeds it, may do everything.
    same = {"state_dir": settings.state_dir, "var_dir": settings.var_dir, "commit_interval_ms": 100}
    app.settings = app.settings.model_copy(update=same)
    context = OperationContext.of(app.plan, settings, [], wall_clock_ms)
    with running(app):
        report = Drill(context, DrillOptions(1, 60.0), LoggingRestoreListener(), lambda _: None).run()
    assert report.verdict is Verdict.OK, report.findings


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (("topic", "DescribeConfigs"), "this user lacks permissions: DescribeConfigs on topic"),
        ((CLUSTER, "DescribeConfigs"), "give this user the right to describe the cluster's configuration"),
    ],
)
def test_should_name_the_acls_that_the_durability_check_lacks(
    guarded: Guarded, lacking: tuple[str, str], said: str
) -> None:
    guarded.allow([acl for acl in beyond(guarded) if (acl.resource, acl.operation) != lacking])
    with pytest.raises(PreflightFailed, match=f"{said}.*--audits"):
        check_durability(guarded.app.plan, guarded.settings())


def test_should_not_wait_for_the_leader_epochs_of_records_that_may_not_be_read(guarded: Guarded, monkeypatch) -> None:
    """An instance asks at its start, and has no right to read its sinks."""
    monkeypatch.setattr(records_at, "_EPOCHS_S", 3600.0)
    name = guarded.app.name
    sink, changelog = TopicPartition(f"{name}-out", 0), TopicPartition(f"{name}-n-changelog", 0)
    assert records_at.leader_epochs_at(guarded.settings(), {sink: 0, changelog: 0}).keys() == {changelog}

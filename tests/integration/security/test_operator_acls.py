"""Commands work on a stopped application with the ACLs of `tidemark acls --operator`, and name one that is missing.

A super user runs the application's instances and writes its input, so only the commands need these ACLs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBindingFilter
from tests.integration.operations.change.test_commands_hold import HeldApp
from tests.support.changes import version_one
from tests.support.counting import PARTITIONS, committed
from tests.support.operator_acls import version_two
from tests.support.secured import USER, Secured, allow, binding, known_acls
from typer.testing import CliRunner

import topologies
from tidemark.cli.main import build
from tidemark.clock import wall_clock_ms
from tidemark.commit.dead_letter import dead_letter_record
from tidemark.commit.record import CommitKind
from tidemark.errors import PreflightFailed
from tidemark.kafka.acls import Acl
from tidemark.kafka.offsets import EndOffsets
from tidemark.kafka.operator_acls import Command, OperatorTopics, operator_acls
from tidemark.kafka.tools import kafka_tool
from tidemark.kafka.topics import internal_topics, partition_counts
from tidemark.names import TaskId, TopicPartition
from tidemark.operations.change.reset_target import StateAfter
from tidemark.operations.context import OperationContext
from tidemark.operations.restore.run import make_plan
from tidemark.operations.topic_changes import TopicChange, apply_changes
from tidemark.operations.workspace import new_id
from tidemark.processes import wait_until
from tidemark.recovery.source_of_state import SourceOfState
from tidemark.registry.operator_rights import operator_topics
from tidemark.registry.reader import named, recorded
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.recompute import Recomputation, recompute
from tidemark.settings import Settings
from tidemark.tasks.update import TOO_LARGE, DeadLetter

BY_COMMAND_LINE = (
    Command.SHOW_SETTINGS, Command.APPLY_SETTINGS, Command.LIST_LETTERS, Command.REPLAY_LETTERS, Command.PURGE_LETTERS,
)  # fmt: skip


class OperatedApp(HeldApp):
    """An application whose instances run as a super user, and whose commands run as the user `app`."""

    state_after_reset = StateAfter.KEEP

    def __init__(self, broker: Secured, folder: Path, name: str) -> None:
        self.broker = broker
        same = {
            "var_dir": folder / "var",
            "state_dir": folder / "state",
            "savepoint_location": str(folder / "savepoints"),
        }
        super().__init__(Settings.load(bootstrap_servers=broker.broker.bootstrap, **same), broker.admin, name)
        self.super_settings = self.settings
        times = {
            key: getattr(self.settings, key)
            for key in ("num_partitions", "session_timeout_ms", "transaction_timeout_ms")
        }
        self.operator = broker.settings("scram", broker_timeout_ms=10_000, **same, **times)
        self.folder = folder

    def topics(self) -> OperatorTopics:
        """Return the topics as `--running` finds them."""
        existing = self.existing()
        return operator_topics(self.plan, recorded(self.super_settings, self.admin, self.plan, existing), existing, 1)

    def acls(self, *commands: Command) -> list[Acl]:
        return operator_acls(self.topics(), commands)

    @contextmanager
    def operated(self) -> Iterator[None]:
        """Run what is in the block as the operator."""
        self.settings = self.operator
        try:
            yield
        finally:
            self.settings = self.super_settings

    def do(self, command: Command) -> None:
        """Run a command as the operator. Raises what the command raises."""
        with self.operated():
            if command in BY_COMMAND_LINE:
                self.call(command)
            elif command is Command.FROM_SOURCE:
                self.recompute()
            else:
                self.command("restore run" if command is Command.RESTORE else str(command), lambda: None)

    def recompute(self) -> None:
        """Compute the state from the sources as a restore does."""
        topic = f"{self.name}-in"
        ends = {TaskId(0, place.partition): {topic: end} for place, end in self.source_ends().items()}
        asked = Recomputation(self.plan, frozenset(s.name for s in self.plan.stores), ends, self.folder / "recomputed")
        recompute(asked, self.settings, LoggingRestoreListener(), lambda: True)

    def source_ends(self) -> dict[TopicPartition, int]:
        places = [TopicPartition(f"{self.name}-in", number) for number in range(PARTITIONS)]
        return EndOffsets(self.admin, 60).of(places)

    def call(self, command: Command) -> str:
        """Run a command line with the current version of the topology, and return its output."""
        extra = {Command.PURGE_LETTERS: ["--until", "-0s", "--yes"]}.get(command, [])
        (store,) = self.plan.stores
        made = (self.name, self.plan.version, store.name)
        (self.folder / "operated_app.py").write_text(
            f"from tests.support.changes import version\ndef topology():\n    return version(*{made!r}, n='count(*)')\n"
        )
        with pytest.MonkeyPatch.context() as patch:
            # That of an earlier test, with another application's name.
            patch.delitem(sys.modules, "topologies.operated_app", raising=False)
            patch.setattr(topologies, "__path__", [*topologies.__path__, str(self.folder)])
            for name, value in self.settings.as_environment().items():
                patch.setenv(name, value)
            group, sub = str(command).split()
            said = CliRunner().invoke(build(), [group, sub, "operated_app", *extra], catch_exceptions=True)
        if said.exception is not None and not isinstance(said.exception, SystemExit):
            raise said.exception
        assert said.exit_code == 0, said.output
        return said.output

    def allow(self, acls: list[Acl]) -> None:
        allow(self.broker.admin, acls)

    def deny(self, acl: Acl) -> None:
        self._delete(binding(acl))

    def deny_all(self) -> None:
        for found in known_acls(self.broker.admin):
            if found.principal == f"User:{USER}":
                self._delete(found)

    def _delete(self, found) -> None:
        taken = AclBindingFilter(
            found.restype, found.name, found.resource_pattern_type, found.principal, found.host, found.operation,
            found.permission_type,
        )  # fmt: skip
        for future in self.broker.admin.delete_acls([taken]).values():
            future.result(60)
        assert wait_until(lambda: found not in known_acls(self.broker.admin), 60)

    def write_letters(self) -> None:
        """Write dead letters that a replay sends to the source, reads again there, and sends to a sink and between tasks."""
        source, sinks = f"{self.name}-in", (f"{self.name}-out", *self.topics().used.repartitions)
        producer = Producer({"bootstrap.servers": self.super_settings.bootstrap_servers})
        for letter in (
            DeadLetter("unparsable", source, 0, 1, b"k", b"{", ()),
            DeadLetter("unparsable", source, 0, 0, b"k", b"{" * 3_000, ()),
            *(
                DeadLetter(
                    TOO_LARGE, source, 0, 2 + number, b"k", b"large", (), None, (("tidemark.sink", sink.encode()),)
                )
                for number, sink in enumerate(sinks)
            ),
        ):
            key, value, headers = dead_letter_record(letter, 2_000)
            producer.produce(f"{self.name}-dlq", value, key, headers=headers)
        assert producer.flush(60) == 0

    def unset_topics(self) -> None:
        """Give every internal topic another setting than the topology asks for."""
        found = recorded(self.super_settings, self.admin, self.plan, existing := self.existing())
        specs = internal_topics(named(self.plan, found), self.super_settings, existing)
        other = {"compact": "delete", "delete": "compact"}
        changes = [
            TopicChange(spec.name, "cleanup.policy", "", other.get(spec.config["cleanup.policy"], "compact"))
            for spec in specs
            if spec.name in existing
        ]
        apply_changes(changes, self.super_settings, self.admin)

    def existing(self) -> dict[str, int]:
        return partition_counts(self.admin, self.super_settings)

    def write_strange(self) -> None:
        """Write a deletion to the changelog that no task wrote, so that a repair has work."""
        producer = Producer({"bootstrap.servers": self.super_settings.bootstrap_servers})
        (changelog,) = self.topics().used.changelogs
        for partition in range(PARTITIONS):
            producer.produce(changelog, None, b"k00000", partition=partition)
        assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def app(guarded_broker: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedApp]:
    """An application that has run twice and is stopped. A refused command does not change it."""
    made = OperatedApp(guarded_broker, tmp_path_factory.mktemp("operated"), "refused")
    yield made
    made.deny_all()


USED = re.compile(
    r"Principal = User:app is Allowed operation = (\w+) .*? on resource = (\w+):LITERAL:(\S+) for request = (\w+)"
)
"""What the broker's authorizer logs for each operation at DEBUG."""


def used(log: str) -> set[tuple[str, str, str]]:
    """Return the operations on resources that requests of the user needed."""
    return {
        (operation.replace("_", ""), kind.replace("_", "").lower(), name)
        for operation, kind, name, _ in USED.findall(log)
    }


@pytest.mark.broker
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", Command, ids=str)
def test_should_name_a_missing_acl_and_change_nothing_in_a_command(app: OperatedApp, command: Command) -> None:
    """Removes one ACL at a time. ACLs of topics that a command creates are checked once it has created them."""
    app.deny_all()
    app.become(version_two(app.name) if command is Command.UPGRADE else version_one(app.name))
    acls = app.acls(command)
    app.allow(acls)
    stands = committed(app)
    made = app.topics().created_by(command)
    topics = {*made.changelogs, *made.repartitions}
    slow = [acl for acl in acls if acl.name in topics]
    # All commands check the ACLs of created topics in one place, so one command and one topic of each kind are enough.
    kept = [
        acl for acl in slow if command is Command.RESCALE and acl.name in (min(made.changelogs), min(made.repartitions))
    ]
    for lacking in [acl for acl in acls if acl not in slow or acl in kept]:
        if lacking.operation == "Create" and lacking not in slow:
            continue  # The topic exists.
        app.deny(lacking)
        with pytest.raises(PreflightFailed) as refused:
            app.do(command)
        said = str(refused.value)
        if lacking.operation == "Create":
            assert f"topic {lacking.name} cannot be created" in said
        elif lacking.resource == "transactional-id":
            assert f"init_transactions of {lacking.name}: " in said
        else:
            # A user who may not see the topic lacks Describe first.
            of = re.escape(f"{lacking.resource} {lacking.name}")
            assert re.search(rf"this user lacks permissions: .*\b({lacking.operation}|Describe) on {of}[,;]", said), (
                said
            )
        assert "tidemark acls" in said
        if lacking.operation != "Delete" or lacking not in slow:
            assert wait_until(lambda: not topics & app.existing().keys(), 60), f"left behind without {lacking}"
        app.allow([lacking])
        if left := topics & app.existing().keys():
            for future in app.admin.delete_topics(list(left)).values():
                future.result(60)
    assert committed(app) == stands


@pytest.mark.broker
@pytest.mark.timeout(600)
def test_should_use_every_granted_acl_in_some_command(guarded_broker: Secured, tmp_path: Path) -> None:
    """The broker logs each operation that it has checked and allowed."""
    app = OperatedApp(guarded_broker, tmp_path, "operated")
    tool = ("configs", "--entity-type", "broker-loggers", "--entity-name", "1", "--alter", "--add-config")
    code, said = kafka_tool(*tool, "kafka.authorizer.logger=DEBUG", settings=app.super_settings, capture=True)
    assert code == 0, said
    granted: set[tuple[str, str, str]] = set()

    def work(*commands: Command) -> None:
        app.deny_all()
        acls = app.acls(*commands)
        app.allow(acls)
        if Command.FROM_SOURCE in commands:
            with app.operated():
                context = OperationContext.of(app.plan, app.settings, [], wall_clock_ms, Command.RESTORE)
                make_plan(context.evidence, new_id(), SourceOfState.SOURCE)
        app.do(commands[0])
        existing = app.existing()
        for acl in acls:
            # Topics that this run did not create, and deletions after a failure, need nothing here.
            is_needed = acl.resource != "topic" or acl.name in existing
            if is_needed and (acl.operation != "Delete" or commands[0] in BY_COMMAND_LINE):
                granted.add((acl.operation.upper(), acl.resource.replace("-", ""), acl.name))

    work(Command.FROM_SOURCE, Command.RESTORE)
    work(Command.RESTORE)
    work(Command.REWIND)
    app.run()
    assert app.counts() == app.expected
    app.write_strange()
    work(Command.REPAIR)
    app.run()
    assert app.counts() == app.expected
    app.become(version_two(app.name))
    work(Command.UPGRADE)
    app.run()
    assert {key: row["n"] for key, row in app.last_outputs().items()} == dict(app.expected)
    work(Command.RESET)
    work(Command.RESCALE)
    assert CommitKind.RESCALE in {record.kind for record in app.last_records().values()}
    app.unset_topics()
    app.write_letters()
    for command in BY_COMMAND_LINE:
        work(command)
    app.deny_all()
    logs = sorted(guarded_broker.broker.log.parent.glob("server.log*"))
    assert sorted(granted - used("".join(log.read_text(errors="replace") for log in logs))) == []

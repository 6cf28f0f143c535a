"""The one transaction that puts a change into effect: description, commit records and source offsets of all tasks.

See invariant: commit records.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.commit.producer import BatchProducer, TransactionalProducer
from tidemark.commit.record import CommitRecord
from tidemark.errors import PreflightFailed, StartRefused
from tidemark.failpoint import Probe
from tidemark.kafka.cluster import topic_ids
from tidemark.kafka.messages import Message
from tidemark.kafka.operator_acls import Command
from tidemark.names import DESCRIPTION_KEY, TaskId, TopicPartition, commits_topic, topology_topic
from tidemark.operations.change.current_state import ApplicationState, read_application_state
from tidemark.operations.change.new_topics import NewTopics
from tidemark.operations.clients import Clients
from tidemark.operations.offline_transaction import aborting, send_offsets, send_record
from tidemark.operations.producer_fencing import fence, fencing_producer
from tidemark.operations.unfinished_work import unfinished_work
from tidemark.registry.description import Description
from tidemark.registry.operator_rights import verify_operator
from tidemark.registry.topic_identities import format_lost, lost_topics, topics_in_use
from tidemark.restore.fencing import fenced
from tidemark.topology.plan import TopologyPlan


@contextmanager
def exclusive_access(
    clients: Clients, plan: TopologyPlan, command: Command, folder_name: str, report: Callable[[str], None]
) -> Iterator[tuple[TransactionalProducer, Path, list[Path]]]:
    """Fence all instances while the block runs.

    Yields a fencing producer, an empty folder that is deleted afterwards, and the application's folders on this machine
    (see `fenced`). `folder_name` is below the state folder. Blocks. Raises `TaskLocked` or `PreflightFailed` while the
    application runs, `PreflightFailed` first of all if the user may not do what `command` needs, and `StartRefused` while a
    restore or a rewind is unfinished.
    """
    settings, app = clients.settings, plan.application_id
    verify_operator(command, plan, settings, clients.admin)
    folder = settings.state_dir / folder_name / app
    with fenced(settings, clients.admin, app, report) as held:
        producer = fencing_producer(clients, plan)
        # Only now are the transactions settled that a killed rewind has left open.
        if (left := unfinished_work(clients, app, "NAME")) is not None:
            raise StartRefused(f"{left}; nothing was changed")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield producer, folder, held
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def fenced_application_state(clients: Clients, plan: TopologyPlan, *, may_be_gone: bool = False) -> ApplicationState:
    """Return the state once the instances that committed last, wherever they ran, can no longer commit. Blocks."""
    last = read_application_state(clients, plan, may_be_gone=may_be_gone).instances
    fence(clients, plan, last - {0})
    # Only now are the transactions settled that an instance elsewhere had left open.
    return read_application_state(clients, plan, may_be_gone=may_be_gone)


@dataclass(frozen=True)
class Switch:
    """Commits a change. The group must be empty and `producer` initialised. `again` is the verb of the change.

    `before` is the state that the change was planned from: if an instance has committed since, nothing is changed. `topics`
    are those that the change has created; the commit brings them into use.
    """

    clients: Clients
    plan: TopologyPlan
    before: ApplicationState
    producer: BatchProducer
    probe: Probe
    again: str
    topics: NewTopics

    def commit(
        self,
        records: Sequence[CommitRecord],
        description: Description | None,
        forgotten: Sequence[TaskId] = (),
        values: Mapping[TopicPartition, Sequence[Message]] | None = None,
    ) -> None:
        """Commit a record of each task with its end offsets; `forgotten` tasks no longer exist. Raises as a commit does.

        Blocks. `values` are written to changelogs that are in use, in the same transaction. The topics that the change
        has created, or accepts as they are now, are those that starts expect from then on (see invariant: topic
        identity). Ids that the description has already stay, and those of `before` stay for topics with state that are
        still used: raises `PreflightFailed` if such a topic was deleted since.
        """
        app = self.plan.application_id
        if description is not None:
            description = replace(description, topic_ids=self._topic_ids(description.topic_ids))
        self.producer.begin()
        with aborting(self.producer):
            for place, messages in (values or {}).items():
                self.producer.send_many(place.topic, messages, place.partition)
            for record in records:
                send_record(self.producer, record)
            for task in forgotten:
                self.producer.send_many(
                    commits_topic(app), [{"key": str(task).encode(), "value": None}], task.partition
                )
            if description is not None:
                message = {"key": DESCRIPTION_KEY, "value": description.to_bytes()}
                self.producer.send_many(topology_topic(app), [message], 0)
            self.producer.flush()
            send_offsets(self.clients, app, self.producer, records, self.before.committed_offsets, self.again)
        self.probe("switch-before-commit")
        with self.topics.committing():
            self.producer.commit()
            self.probe("switch-committed")

    def _topic_ids(self, known: Mapping[str, str]) -> dict[str, str]:
        uses = topics_in_use(self.plan)
        found = topic_ids(self.clients.admin, list(uses), self.clients.settings)
        kept = self.before.state_topic_ids
        if lost := lost_topics({topic: use for topic, use in uses.items() if topic in kept}, kept, found):
            raise PreflightFailed(f"{format_lost(self.plan.application_id, lost)}; nothing was changed")
        ids = {**found, **known}
        if missing := [topic for topic in uses if topic not in ids]:
            raise PreflightFailed(
                f"topics {', '.join(missing)} were deleted during the change; nothing was changed: create sources and sinks "
                "with `tidemark topics create NAME`, then run the command again"
            )
        return {topic: ids[topic] for topic in uses}

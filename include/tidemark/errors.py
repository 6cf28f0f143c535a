"""Error classes, one per reaction. A message states what is wrong, where, and what to do next."""

from __future__ import annotations

from enum import IntEnum

RECORDS_PREFIX = "tidemark records: "
"""The beginning of each line of output that quotes a record. Such lines are left out where others see the output."""


class ExitCode(IntEnum):
    """Exit code by which a Tidemark process informs its supervisor (see invariant: exit codes)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    RETRY = 10
    FENCED = 20
    REFUSED = 30


class TidemarkError(Exception):
    """Base of all errors with a message for the user. `exit_code` is the exit code of a process that ends with it.

    Everybody who may see the stream sees the message, in events, alerts and task logs. `records` holds what quotes a record,
    such as the text of an error of user code, and is only in the process's own output.
    """

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, *message: object, records: str = "") -> None:
        super().__init__(*message)
        self.records = records

    def extend(self, more: str) -> None:
        """Append to the message what is known only where the error is handled."""
        self.args = (f"{self}; {more}",)


class InvalidTopology(TidemarkError):
    """A topology cannot be built. The message names the node and the remedy."""

    exit_code = ExitCode.USAGE


class ApplicationIdTaken(InvalidTopology):
    """A topology module has the application id of another module, which keeps it. The message names that module."""


class InvalidSettings(TidemarkError):
    """A setting cannot be used. The message names the setting and the remedy."""

    exit_code = ExitCode.USAGE


class PreflightFailed(TidemarkError):
    """Brokers, topics, disk or Java do not meet the application's needs. A relaunch alone does not help."""

    exit_code = ExitCode.REFUSED


class StartRefused(TidemarkError):
    """The start plan refuses to run from the state that it found. The message names the reason and the repair command."""

    exit_code = ExitCode.REFUSED


class TaskLocked(TidemarkError):
    """Another live process holds the lock of the task directory."""

    exit_code = ExitCode.REFUSED


class StandbyLocked(TaskLocked):
    """Another live process has the number of a standby, or one of its folders. The standby is started again later."""

    exit_code = ExitCode.RETRY


class ApplicationHeld(TidemarkError):
    """A command or an on-call case works on the stopped application. An instance can be launched when that has ended."""

    exit_code = ExitCode.RETRY


class OutcomeUnknown(TidemarkError):
    """A commit may or may not have happened, or no broker answers. The process must end and be started again."""

    exit_code = ExitCode.RETRY


class ProducerFenced(OutcomeUnknown):
    """The transaction coordinator rejects this producer because its epoch is old.

    Either its transaction timed out, or another copy of the instance started: the coordinator reports the same error for both
    (see invariant: exit codes).
    """


class BatchTooLarge(OutcomeUnknown):
    """Spark had too little memory to compute a batch. Nothing of it was committed; a smaller batch is tried next."""


class SparkEnded(BatchTooLarge):
    """Spark's JVM has ended, most often because a batch did not fit into its memory. The next launch tries a smaller batch."""


class InstanceFenced(TidemarkError):
    """The group has replaced this instance's member by another one. If that is a live copy, this one is not relaunched."""

    exit_code = ExitCode.FENCED


class BrokersAway(OutcomeUnknown):
    """No broker answers, or partitions that the application needs have no leader. Wait for them, then start again."""


class BatchAborted(TidemarkError):
    """The transaction was aborted; nothing of the batch is visible. If the tasks are still owned, it may be retried."""

    exit_code = ExitCode.RETRY


class TaskCorrupted(TidemarkError):
    """A store cannot be read. Its state is rebuilt from the changelog."""

    exit_code = ExitCode.RETRY


class StoreFailed(TidemarkError):
    """The files of a store cannot be written, most often because the disk is full. Committed data is safe in Kafka."""

    exit_code = ExitCode.RETRY


class StoreUnavailable(StoreFailed):
    """The files of a store cannot be opened now, and may be intact. They stay as they are; a copy elsewhere may be used."""


class SnapshotReleased(TidemarkError):
    """A store was closed while it was read, because its task moved or the process ends. Ask again: another holder answers."""

    exit_code = ExitCode.RETRY


class CopyUnusable(TidemarkError):
    """A savepoint's or standby's copy of a store does not match its description. The next source of state is used."""

    exit_code = ExitCode.RETRY


class StandbyOutdated(TidemarkError):
    """The application's state is no longer that of the topology with which this standby was started. Restart the standby."""

    exit_code = ExitCode.RETRY


class StandbyCannotFollow(TidemarkError):
    """A standby that starts has waited in vain for an application that it can follow. The message names what is missing."""

    exit_code = ExitCode.RETRY


class TopicMissing(PreflightFailed):
    """A topic of the application does not exist yet: no instance has started."""


class SavepointFailed(TidemarkError):
    """A savepoint was not taken, or its location cannot be used. The stream continues. The message names place and remedy."""


class BufferFull(TidemarkError):
    """A node holds more in memory than its bound. The message names node, bound and remedy. A relaunch does not help."""

    exit_code = ExitCode.REFUSED


class StateTooLarge(TidemarkError):
    """A value of a store is too large for its changelog, also on every retry. Names store, size and setting.

    `records` has the key.
    """

    exit_code: ExitCode = ExitCode.REFUSED


class RecordRefused(TidemarkError):
    """A record cannot be processed and the topology declares `on_error="fail"`. Names coordinates, reason and remedy.

    `records` has the text of the error.
    """

    exit_code: ExitCode = ExitCode.REFUSED


class UserCodeFailed(TidemarkError):
    """User code failed without a record to blame, so every retry fails too. The message names the node and the code.

    `records` has the text of the error, which may quote what the code has read.
    """

    exit_code: ExitCode = ExitCode.REFUSED


class FactsUnavailable(TidemarkError):
    """The database of facts does not answer. A stream continues without it; a command that reads it may be retried."""

    exit_code = ExitCode.RETRY


def describe_error(error: BaseException) -> str:
    """Return the class and the text of an error that user code raised, whose `__str__` may raise itself."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001
        text = "(its text is unknown, because its __str__ raised)"
    return f"{type(error).__name__}: {text}"

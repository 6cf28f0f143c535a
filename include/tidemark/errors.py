"""One error class per reaction. A message says what is wrong, where, and what to do next."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a Tidemark process tells its supervisor by ending (rule 22)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    RETRY = 10
    FENCED = 20
    REFUSED = 30


class TidemarkError(Exception):
    """Base of all errors that carry a message for a person; `exit_code` is the process's reaction."""

    exit_code: ExitCode = ExitCode.FAILED


class InvalidTopology(TidemarkError):
    """A topology that cannot be built. Names the node and the remedy."""

    exit_code = ExitCode.USAGE


class InvalidSettings(TidemarkError):
    """A setting that cannot be used. Names the setting and the remedy."""

    exit_code = ExitCode.USAGE


class PreflightFailed(TidemarkError):
    """Broker, topics, disk or Java are not as the application needs them; relaunching alone will not help."""

    exit_code = ExitCode.REFUSED


class StartRefused(TidemarkError):
    """The start plan found a state it must not run from. Names the reason and the command that repairs it."""

    exit_code = ExitCode.REFUSED


class TaskLocked(TidemarkError):
    """Another live process has the task directory open."""

    exit_code = ExitCode.REFUSED


class ApplicationHeld(TidemarkError):
    """A command or a case works on the stopped application: an instance is launched when that has ended."""

    exit_code = ExitCode.RETRY


class OutcomeUnknown(TidemarkError):
    """A commit may or may not have happened, or the broker is away: throw the process away and start anew."""

    exit_code = ExitCode.RETRY


class ProducerFenced(OutcomeUnknown):
    """The transaction coordinator has moved on without this producer.

    It timed its transaction out, or another copy of the instance has begun: it says the same of both (rule 22).
    """


class BatchTooLarge(OutcomeUnknown):
    """Spark could not compute a batch in the memory that it has: nothing of it was committed, a smaller one is tried."""


class InstanceFenced(TidemarkError):
    """The group has given this instance's place to another copy of it: this copy ends and is not relaunched."""

    exit_code = ExitCode.FENCED


class BrokersAway(OutcomeUnknown):
    """No broker answers, or partitions that the application needs have none: wait for them, then start again."""


class BatchAborted(TidemarkError):
    """The transaction was aborted, nothing of the batch is visible; it may be committed again if the tasks are ours."""

    exit_code = ExitCode.RETRY


class TaskCorrupted(TidemarkError):
    """A store cannot be read; its state is rebuilt from the changelog."""

    exit_code = ExitCode.RETRY


class StoreFailed(TidemarkError):
    """A store's files cannot be written, most often as the disk is full; what is committed is safe in Kafka."""

    exit_code = ExitCode.RETRY


class CopyUnusable(TidemarkError):
    """A savepoint's or standby's copy of a store is not what it says; the next source of state is taken."""

    exit_code = ExitCode.RETRY


class StandbyOutdated(TidemarkError):
    """The application keeps another state than the topology that this standby was started with: start it again."""

    exit_code = ExitCode.RETRY


class SavepointFailed(TidemarkError):
    """A savepoint was not taken, or its location cannot be used; the stream goes on. Names the place and the remedy."""


class BufferFull(TidemarkError):
    """What a node keeps in memory is beyond its bound. Names node, bound and remedy; relaunching alone will not help."""

    exit_code = ExitCode.REFUSED


class StateTooLarge(TidemarkError):
    """A value of a store is larger than its changelog takes; the next try is the same. Names store, key, size and setting."""

    exit_code: ExitCode = ExitCode.REFUSED


class RecordRefused(TidemarkError):
    """A record cannot be processed, and the topology says `on_error="fail"`. Names its coordinates, reason and remedy."""

    exit_code: ExitCode = ExitCode.REFUSED


class UserCodeFailed(TidemarkError):
    """A user's code raised where no record is to blame, so that the next try is the same. Names node and code."""

    exit_code: ExitCode = ExitCode.REFUSED


class FactsUnavailable(TidemarkError):
    """The database of facts does not answer. A stream goes on without it; a command that reads it is tried again."""

    exit_code = ExitCode.RETRY

"""What the tasks of `upgrade`, `rescale` and `offsets_reset` do. Imported by a task when it runs, as it loads clients.

A refusal ends the task for good; everything else may pass, so that the task is tried again, which finds what is done.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from tidemark.change.rescale import Rescale
from tidemark.change.rescale_plan import RescalePlan
from tidemark.change.reset import Reset
from tidemark.change.reset_plan import ResetPlan, ResetTo, StateAfter, parse_offsets
from tidemark.change.upgrade import Upgrade
from tidemark.change.upgrade_plan import UpgradePlan
from tidemark.clock import wall_clock_ms
from tidemark.errors import PreflightFailed, StartRefused
from tidemark.hold import release_hold
from tidemark.probe import probe_from_environment
from tidemark.restore.listener import LoggingRestoreListener
from tidemark.restore.when import parse_time
from tidemark.settings import Settings
from tidemark.topology.load import load
from tidemark_airflow.holding import stop_under_hold

log = logging.getLogger(__name__)

Params = Mapping[str, Any]
AnyPlan = UpgradePlan | RescalePlan | ResetPlan


_MOVING = (ResetTo.LATEST, ResetTo.TIME)


def plan(kind: str, params: Params) -> tuple[str, list[str]]:
    """What it would do now, as Markdown, and what `change` must be given of it; the application runs on.

    That is the offsets where the end, or a time, would mean others by the time it is approved. Raises
    `AirflowFailException` where it is refused.
    """
    with _told():
        work = _work(kind, params)
        if isinstance(work, Upgrade):
            with tempfile.TemporaryDirectory(prefix="tidemark-upgrade-") as folder:
                made: AnyPlan = work.show(Path(folder))
        else:
            made = work.show()
        if isinstance(made, UpgradePlan):
            made.require_possible()
        moving = isinstance(made, ResetPlan) and made.to in _MOVING
        return told(made), made.targets if moving else []


def fence(kind: str, run_id: str, params: Params) -> None:
    """Stop every instance here, and keep the stream DAG from relaunching them."""
    settings = Settings.load()
    with _told():
        app = load(params["topology"]).application_id
        stop_under_hold(settings.var_dir, app, f"{kind} {run_id}", f"{kind} from Airflow", log.info)


def change(kind: str, params: Params, offsets: Sequence[str] = ()) -> None:
    """Do what was approved, to the `offsets` of the plan; what was committed before is only cleaned up behind."""
    if offsets:
        params = {**params, "to": ResetTo.OFFSETS, "offsets": offsets}
    with _told():
        _work(kind, params).run(lambda made: not log.info("%s", told(made)))


def release(kind: str, run_id: str, params: Params) -> bool:
    """Let the stream DAG relaunch; False where this run held nothing."""
    app = load(params["topology"]).application_id
    return release_hold(Settings.load().var_dir, app, f"{kind} {run_id}")


def told(made: AnyPlan) -> str:
    """A plan for the one who approves it."""
    if isinstance(made, UpgradePlan):
        lines = [f"{made.application_id}: version {made.from_version} to {made.to_version}"]
        lines += [f"- `{c.name}` is {c.fate}: {c.why}" for c in made.changes]
        lines += [f"- **lost**: {keys} keys of `{store}`" for store, keys in made.lost.items()]
        return "\n".join(lines)
    if isinstance(made, RescalePlan):
        lines = [f"{made.application_id}: {made.tasks} tasks instead of {sorted(set(made.before.values()))}"]
        lines += [f"- `{store}`: every key to its new task" for store in made.stores]
        return "\n".join([*lines, *(f"- {warning}" for warning in made.warnings)])
    lines = [f"{made.application_id}: offsets to {made.to}, state: {made.state}"]
    lines += [f"- `{s.partition}`: {s.from_offset} to {s.to_offset}" for s in made.sources]
    return "\n".join([*lines, *(f"- {warning}" for warning in made.warnings)])


def _work(kind: str, params: Params) -> Upgrade | Rescale | Reset:
    settings, module = Settings.load(), load(params["topology"]).plan()
    listener, probe, say = LoggingRestoreListener(), probe_from_environment(), log.info
    if kind == "upgrade":
        declared = (params["rename"], params["drop"], params["add"])
        return Upgrade(module, settings, wall_clock_ms, *declared, listener, probe, say)
    if kind == "rescale":
        return Rescale(module, settings, wall_clock_ms, params["tasks"], listener, probe, say)
    to, state = ResetTo(params["to"]), StateAfter(params["state"])
    given = parse_offsets(params["offsets"])
    try:
        at_ms = parse_time(params["time"], wall_clock_ms()) if to is ResetTo.TIME else None
    except ValueError as error:
        raise StartRefused(f"time: {error}") from error
    return Reset(module, settings, wall_clock_ms, to, state, given, at_ms, listener, probe, say)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (StartRefused, PreflightFailed) as error:
        raise AirflowFailException(str(error)) from error

"""The report of copies that would be lost together with the instances of their tasks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidemark.names import TaskId

log = logging.getLogger(__name__)


class PlacementReport:
    """Reports the tasks whose instance is in the standby's own rack. Each set of tasks is logged once."""

    def __init__(self, application_id: str, standby_queue: str) -> None:
        """`standby_queue` is the setting."""
        self._application_id = application_id
        self._queue = standby_queue
        self._logged: list[str] = []

    def fields(self, same_rack: Sequence[TaskId]) -> dict[str, object]:
        """Return the field of the run file for the tasks in the same rack, and log them if they are others than before."""
        tasks = [str(task) for task in same_rack]
        if tasks and tasks != self._logged:
            self._logged = tasks
            log.warning(
                "the standby of %s is in the rack of the instance of %s, and is lost together with it: let a machine of "
                "another rack serve the queue %s, and see that the setting rack differs there",
                self._application_id, ", ".join(tasks), self._queue,
            )  # fmt: skip
        return {"same_rack_tasks": tasks}

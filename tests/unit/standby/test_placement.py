"""The report of a standby about tasks whose instance is in its own rack."""

from tidemark.names import TaskId
from tidemark.standby.placement import PlacementReport

FIRST, SECOND = TaskId(0, 0), TaskId(0, 1)


def test_should_warn_once_of_each_set_of_tasks_whose_instance_is_lost_with_the_standby(caplog):
    report = PlacementReport("app", "standbys")
    looks = ([], [FIRST], [FIRST], [], [FIRST], [FIRST, SECOND])
    assert [report.fields(tasks) for tasks in looks] == [
        {"same_rack_tasks": [str(task) for task in tasks]} for tasks in looks
    ]
    warnings = [record.getMessage() for record in caplog.records]
    assert [line.partition(", and is lost")[0] for line in warnings] == [
        "the standby of app is in the rack of the instance of 0_0",
        "the standby of app is in the rack of the instance of 0_0, 0_1",
    ]
    assert all("serve the queue standbys" in line for line in warnings)

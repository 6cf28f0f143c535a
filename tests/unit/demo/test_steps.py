"""Steps run in their order, say what they wait for, and do not stop each other."""

from __future__ import annotations

import threading

from demo.steps import Step, StepRunner, StepState, StepView
from tidemark.errors import TidemarkError


def test_should_run_in_order_and_keep_outcomes_and_faults():
    ran = []

    def work(name, outcome):
        def run(report):
            report("something")
            ran.append(name)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return Step(name, run)

    times = iter(range(100))
    runner = StepRunner(
        [work("a", "well"), work("b", TidemarkError("no broker")), work("c", KeyError("x")), work("d", "well")],
        clock=lambda: float(next(times)),
    )
    assert [view.state for view in runner.views()] == [StepState.NEXT] * 4
    assert not any(view.has_ended for view in runner.views())
    runner.run()
    assert ran == ["a", "b", "c", "d"]
    assert runner.views() == (
        StepView("a", StepState.DONE, "well", 1.0),
        StepView("b", StepState.FAILED, "no broker", 1.0),
        StepView("c", StepState.FAILED, "KeyError: 'x'", 1.0),
        StepView("d", StepState.DONE, "well", 1.0),
    )
    assert all(view.has_ended for view in runner.views())


def test_should_say_what_the_present_step_waits_for_and_for_how_long():
    waits, free = threading.Event(), threading.Event()

    def work(report):
        report("a broker")
        waits.set()
        assert free.wait(30)
        return "well"

    time_s = [10.0]
    runner = StepRunner([Step("a", work), Step("b", lambda _report: "")], clock=lambda: time_s[0])
    runner.start()
    assert waits.wait(30)
    time_s[0] = 17.0
    assert runner.views() == (StepView("a", StepState.NOW, "a broker", 7.0), StepView("b", StepState.NEXT))
    free.set()
    runner.join(30)
    assert all(view.has_ended for view in runner.views())

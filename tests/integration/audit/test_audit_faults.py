"""Some of `make audit-faults` in every test run: three faults, and a healthy application that was killed in a commit."""

from __future__ import annotations

import uuid

import pytest
from tests.support.audit.faults import FAULTS, Fault
from tests.support.audit.matrix import Matrix

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(560)]

CHOSEN = ("an output lost and another doubled", "an output copied between two audits", "a wrong value in a changelog")


def name_of(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in CHOSEN], ids=lambda fault: fault.name)
def test_should_catch_each_fault_with_the_expectation_meant_for_it(matrix: Matrix, fault: Fault) -> None:
    found = matrix.fault(fault, name_of("fault"))
    assert found.as_wanted, found.complaints


@pytest.mark.crash
def test_should_report_no_fault_when_an_application_was_killed_during_a_commit(matrix: Matrix) -> None:
    found = matrix.healthy(4, name_of("healthy"))
    assert found.as_wanted, found.complaints

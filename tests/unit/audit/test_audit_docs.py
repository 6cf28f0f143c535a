"""docs/audit.md says what the code does."""

from __future__ import annotations

from tests.support.audit import pages
from tests.support.audit.application import payments

from tidemark.audit.contracts import contracts
from tidemark.audit.expectations import ASSETS, BY_NAME
from tidemark.settings import project_root

PAGE = project_root() / "docs" / "audit.md"


def test_should_list_every_expectation_and_every_fault_on_the_page() -> None:
    text = PAGE.read_text()
    for table in (pages.expectations(), pages.faults()):
        assert "\n".join(table) in text, "run: .venv/bin/python -m tests.support.audit.pages"


def test_should_have_a_fault_for_every_expectation() -> None:
    caught = {fault.caught_by.format(app=pages.APPLICATION) for fault in pages.FAULTS}
    ruled = {check.name for contract in contracts(payments(pages.APPLICATION).plan()) for check in contract.checks}
    assert caught == BY_NAME.keys() | ruled
    assert len(ruled) == 3
    assert len(pages.FAULTS) >= 20


def test_should_list_the_columns_of_every_asset_on_the_page() -> None:
    text = PAGE.read_text()
    assert [asset for asset in ASSETS if f"| `{asset}` |" not in text] == []

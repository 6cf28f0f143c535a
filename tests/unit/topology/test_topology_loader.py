"""Topology modules are found and loaded without Spark, and their errors are reported with the line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import topologies
from tidemark.errors import ApplicationIdTaken, InvalidTopology
from tidemark.topology.builder import Topology
from tidemark.topology_loader import load, load_all, names


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(topologies, "__path__", [*topologies.__path__, str(tmp_path)])

    def write(source: str) -> str:
        name = f"written_{abs(hash(request.node.nodeid))}"
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, f"topologies.{name}", raising=False)
        return name

    return write


def test_should_list_and_load_the_example() -> None:
    assert "patient_monitoring" in names()
    assert load("patient_monitoring").application_id == "patient-monitoring"


def test_should_import_no_spark_no_client_and_no_store_when_loading() -> None:
    code = (
        "import sys; from tidemark.topology_loader import load; load('patient_monitoring').describe();"
        "heavy = 'pyspark', 'airflow', 'confluent_kafka', 'rocksdict', 'pyarrow', 'numpy';"
        "print([module for module in heavy if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "[]"


def test_should_suggest_the_nearest_name_for_an_unknown_one() -> None:
    with pytest.raises(InvalidTopology, match="did you mean 'patient_monitoring'"):
        load("patient-monitoring")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("1 +\n", "SyntaxError"),
        ("\nimport nosuch_module\n", "No module named 'nosuch_module'"),
        ("x = 1\n", "define `def topology"),
        ("def topology():\n    return 3\n", "returned int; return the Topology"),
        ("def topology():\n    return 1 / 0\n", "line 2"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("import sys\ndef topology():\n    sys.exit()\n", "line 3"),
        (
            "from tidemark.topology.builder import Topology\ndef topology():\n    t = Topology('a')\n"
            "    t.stream('x', schema='a INT', key='b').to('y')\n    return t\n",
            "line 4",
        ),
        (
            "from tidemark.topology.builder import Topology\ndef topology():\n    return Topology('a')\n",
            "it is empty",
        ),
    ],
)
def test_should_name_a_module_that_does_not_load_and_its_error(module, source: str, says: str) -> None:  # type: ignore[no-untyped-def]
    name = module(source)
    with pytest.raises(InvalidTopology) as refused:
        load(name)
    assert str(refused.value).startswith(f"topology {name}")
    assert says in str(refused.value)


_SOURCE = """
from tidemark.topology.builder import Topology
def topology():
    topology = Topology({application_id!r})
    topology.stream("x", schema="a STRING", key="a").filter("a != ''").to("y")
    return topology
"""


@pytest.mark.parametrize(
    ("application_id", "modules", "owner"),
    [
        ("page-clicks", ["a_copy", "page_clicks", "pages"], "page_clicks"),
        ("page-clicks", ["a_copy_of_pages", "pages", "pages_v2"], "pages"),
        ("page-clicks", ["pages_b", "pages_a"], "pages_a"),
    ],
    ids=["named after the application", "shortest", "first by name"],
)
def test_should_leave_an_application_id_to_one_module_and_name_it_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, application_id: str, modules: list[str], owner: str
) -> None:
    monkeypatch.setattr(topologies, "__path__", [str(tmp_path)])
    for name, source in [*((name, _SOURCE.format(application_id=application_id)) for name in modules), ("odd", "1 +")]:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, f"topologies.{name}", raising=False)
    loaded = load_all()
    assert sorted(loaded) == sorted([*modules, "odd"])
    assert [name for name, built in loaded.items() if isinstance(built, Topology)] == [owner]
    for name in {*modules} - {owner}:
        assert str(loaded[name]).startswith(
            f"topology {name}: the application id '{application_id}' belongs to the module topologies/{owner}.py"
        )
    assert "SyntaxError" in str(loaded["odd"])


def test_should_leave_an_application_id_to_the_module_that_is_named_after_it_also_if_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = _load_with_copy(tmp_path, monkeypatch, _SOURCE.format(application_id="page-clicks") + "1 +")
    assert isinstance(loaded["a_copy"], ApplicationIdTaken)
    assert "belongs to the module topologies/page_clicks.py" in str(loaded["a_copy"])
    assert "SyntaxError" in str(loaded["page_clicks"])


def test_should_not_leave_an_application_id_to_a_module_that_has_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = _load_with_copy(tmp_path, monkeypatch, _SOURCE.format(application_id="orders"))
    assert {type(built) for built in loaded.values()} == {Topology}


@pytest.mark.parametrize(
    "source",
    [
        _SOURCE.format(application_id="orders") + "1 +",
        # What the others import is not a stream, whatever it names.
        "APPLICATION_ID = 'page-clicks'",
    ],
    ids=["another application id", "no function topology()"],
)
def test_should_not_take_an_application_from_its_module_for_one_that_does_not_load_and_does_not_declare_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    loaded = _load_with_copy(tmp_path, monkeypatch, source)
    assert isinstance(loaded["page_clicks"], InvalidTopology)
    assert isinstance(loaded["a_copy"], Topology)


def _load_with_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_clicks: str
) -> dict[str, Topology | Exception]:
    """Load `page_clicks`, whose source is given, and `a_copy` with the application id `page-clicks`."""
    monkeypatch.setattr(topologies, "__path__", [str(tmp_path)])
    for name, source in [("page_clicks", page_clicks), ("a_copy", _SOURCE.format(application_id="page-clicks"))]:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, f"topologies.{name}", raising=False)
    return load_all()


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(topologies.__path__[0]).parent), "PATH": ""}

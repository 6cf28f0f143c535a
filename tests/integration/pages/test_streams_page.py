"""The Streams page in a real Airflow, in Debian's chromium: as an administrator, as a viewer, and without a login."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from tests.support.airflow.real_airflow import RealAirflow, real_airflow
from tests.support.browser import Tab, open_tab
from tests.support.overview import write_run_file
from tests.support.prometheus import prometheus

from tidemark import processes
from tidemark.checks.store_growth import StoreSample, append, history_path
from tidemark.clock import wall_clock_ms
from tidemark.devstack import airflow_parts
from tidemark.operations.case.case import Case, CaseFolder
from tidemark.settings import Settings, project_root
from tidemark.supervision.outage_file import RecordedOutage, outage_path, write_outage

_CASE = "20261122T031500000000Z"
_SECRET = "password-of-the-broker"
_DAG = """
from tidemark.topology_loader import load
from tidemark_airflow.dag import stream_dag
dag = stream_dag("clicks", load("clicks"))
"""
_FORM = "/streams/forms/restore_oncall?topology=clicks"
_ROUTES = (
    "/streams/", "/streams/applications/clicks", "/streams/dags/stream__clicks", "/streams/updates",
    "/streams/updates?topology=clicks", f"/streams/applications/clicks/cases/{_CASE}", "/streams/applications/clicks/audit",
    "/streams/metrics", "/streams/metrics/targets", _FORM,
)  # fmt: skip
_FRAME = "document.querySelector('iframe')?.contentDocument"

_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass(frozen=True)
class Site:
    """The server, and what its users send to be known."""

    airflow: RealAirflow
    settings: Settings
    tokens: dict[str, str]

    @property
    def url(self) -> str:
        return self.airflow.api.url

    def get(self, path: str, user: str | None = None, accept: str = "application/json") -> httpx.Response:
        headers = {"Accept": accept} | ({} if user is None else {"Authorization": f"Bearer {self.tokens[user]}"})
        with httpx.Client(trust_env=False, timeout=60) as client:
            return client.get(self.url + path, headers=headers)

    def outage(self) -> None:
        """Let the instance wait for a broker."""
        outage = RecordedOutage(wall_clock_ms(), "no broker leads clicks[0]", ())
        write_outage(outage_path(self.settings.var_dir, "clicks", 0), outage)

    def instance(self, **given: Any) -> None:
        """An instance that runs well, whatever an earlier test made it wait for."""
        outage_path(self.settings.var_dir, "clicks", 0).unlink(missing_ok=True)
        write_run_file(
            self.settings.var_dir, "clicks", records_per_second=4321.0, last_commit_ms=wall_clock_ms(),
            last_commit_seconds=0.25, partitions=["clicks[0]"], topology_version="1", **given,
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An Airflow with one stream, whose broker does not exist. Nothing launches the stream."""
    folder = tmp_path_factory.mktemp("site")
    dags = folder / "dags"
    dags.mkdir()
    (dags / "stream.py").write_text(_DAG)
    for name in ("durability_check", "restore_oncall"):
        shutil.copy(project_root() / "dags" / f"{name}.py", dags)
    settings = Settings.load(
        var_dir=folder / "var", state_dir=folder / "state", bootstrap_servers="127.0.0.1:1", sasl_password=_SECRET
    )
    hour_ms, now_ms = 3_600_000, wall_clock_ms()
    samples = [
        StoreSample(
            now_ms - hours * hour_ms, "clicks", "0_0", "user-sessions", "0", 900 - hours, 5000 - hours, None, None
        )
        for hours in range(48, 0, -6)
    ]
    append(history_path(settings.var_dir, "clicks"), samples)
    mark = f"tests-{uuid.uuid4()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(processes.MARK, mark)
        with real_airflow(settings, dags, mark, "api-server", "dag-processor") as airflow:
            for dag_id in ("stream__clicks", "durability_check", "restore_oncall"):
                airflow.api.wait_for_dag(dag_id, 120)
            airflow.api.unpause("stream__clicks")
            yield Site(airflow, settings, {user: airflow.token(user) for user in ("admin", "guest")})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    if shutil.which("chromium") is None:
        pytest.skip("no chromium: on Debian `apt-get install chromium`, as `make test` does for root")
    with open_tab(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, site: Site) -> Tab:
    """The browser's page, logged in as an administrator, with an instance that runs well."""
    site.instance()
    log_in(browser, site, "admin")
    browser.look_like(1440)
    browser.errors.clear()
    browser.requests.clear()
    return browser


def log_in(tab: Tab, site: Site, user: str) -> None:
    tab.set_cookie("_token", site.tokens[user], site.url)


@pytest.mark.airflow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("route", _ROUTES)
def test_without_a_login_there_should_be_nothing(site: Site, route: str) -> None:
    refused = site.get(route)
    assert refused.status_code == 401
    assert "clicks" not in refused.text
    page = site.get(route, accept="text/html")
    assert (page.status_code, "Log in to see the streams" in page.text) == (401, True)
    assert 'href="/auth/login' in page.text


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_prometheus_should_scrape_what_its_user_may_see(site: Site) -> None:
    site.instance(query_url="http://127.0.0.1:4711")

    wanted = {
        'tidemark_application_state{application="clicks",state="Running"} 1.0',
        'tidemark_application_wanted{application="clicks"} 1.0',
        'tidemark_dag_on{dag_id="stream__clicks"} 1.0',
        'tidemark_facts_reachable{application="clicks"} 1.0',
    }

    def missing() -> set[str]:
        return wanted - set(site.get("/streams/metrics", "guest").text.splitlines())

    # The first request starts two threads: one reads the run files, the other the database of facts.
    assert processes.wait_until(lambda: not missing(), 60), missing()
    assert site.get("/streams/metrics/targets", "guest").json() == [
        {
            "targets": ["127.0.0.1:4711"],
            "labels": {"__scheme__": "http", "__meta_tidemark_application": "clicks", "__meta_tidemark_instance": "0"},
        }
    ]


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_killed_instance_should_be_an_alert_of_prometheus(site: Site, tmp_path: Path) -> None:
    instance = processes.start(["sleep", "600"], tmp_path / "log", {}, tmp_path)
    # Nothing answers there, which is how it is seen that Prometheus knows the instance from Airflow.
    site.instance(**asdict(instance), query_url="http://127.0.0.1:1")
    for name in ("airflow", "instances"):
        (tmp_path / name).write_text(site.tokens["guest"])
    text = (project_root() / "compose" / "prometheus.yaml").read_text()
    for there, here in (("api-server:8080", urlsplit(site.url).netloc), ("/var/tokens/", ""), ("15s", "2s")):
        assert there in text
        text = text.replace(there, here)
    jobs = [{**job, "scrape_interval": "2s"} for job in yaml.safe_load(text)["scrape_configs"]]
    with prometheus(tmp_path, jobs) as server:
        running = 'tidemark_application_state{application="clicks", state="Running"}'
        assert processes.wait_until(lambda: server.value(running) == 1, 60, every_s=0.5), server.ask("targets")
        known = 'up{job="tidemark", instance="127.0.0.1:1"}'
        assert processes.wait_until(lambda: server.value(known) == 0, 60, every_s=0.5), server.ask("targets")
        assert "TidemarkStreamNotRunning" not in server.firing()
        processes.stop(instance, timeout_s=0)
        labels = server.await_alert("TidemarkStreamNotRunning")
    assert labels["application"] == "clicks"


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_viewer_should_read_and_see_no_buttons(tab: Tab, site: Site, tmp_path: Path) -> None:
    gone = processes.start(["sleep", "600"], tmp_path / "log", {}, tmp_path)
    processes.stop(gone, timeout_s=0)
    site.instance(**asdict(gone))
    log_in(tab, site, "guest")
    for path in ("/streams/", "/streams/applications/clicks"):
        tab.open(site.url + path)
        tab.wait_for("document.body.innerText.includes('clicks')")
        # What is wrong names the stream's DAG, which a viewer may open.
        tab.wait_for("document.querySelector('.concern a')?.textContent === \"Open the stream's DAG\"")
        assert tab.value("document.querySelectorAll('.button').length") == 0
    log_in(tab, site, "admin")
    tab.open(f"{site.url}/streams/applications/clicks")
    tab.wait_for("document.querySelectorAll('.button').length > 3")


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_the_page_should_say_at_once_that_kafka_is_away_and_show_the_rest(tab: Tab, site: Site) -> None:
    tab.open(f"{site.url}/streams/")
    # What the broker says is looked for in the background; a page shows what is known by then.
    for said in ("Kafka does not answer", "No broker answers at 127.0.0.1:1", "4,321"):
        tab.wait_for(f"document.body.innerText.includes('{said}')")
    assert tab.errors == []


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_the_page_should_follow_what_happens_without_being_loaded_again(tab: Tab, site: Site) -> None:
    tab.open(f"{site.url}/streams/")
    tab.value("window.mark = 1")
    tab.wait_for("document.getElementById('live').textContent === 'Live'")
    site.outage()
    tab.wait_for("document.getElementById('s-concerns').innerText.includes('no broker leads clicks[0]')")
    assert tab.value("document.querySelector('#s-concerns .button').textContent") == "Check replicas and leaders"
    assert "needs you" in tab.value("document.getElementById('s-summary').innerText")
    assert tab.value("window.mark") == 1
    assert tab.errors == []


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_button_in_airflows_frame_should_open_the_form_filled_in_and_trigger_the_dag(tab: Tab, site: Site) -> None:
    site.outage()
    tab.open(f"{site.url}/plugin/streams")
    tab.wait_for(f"Boolean({_FRAME}?.querySelector('#s-concerns .button'))")
    tab.value(f"{_FRAME}.querySelector('#s-concerns .button').click()")
    tab.wait_for(f"Boolean({_FRAME}?.querySelector('#form button'))")
    checked = f"[...{_FRAME}.querySelectorAll('input:checked')].map(box => box.value)"
    assert tab.value(checked) == ["clicks"]
    assert "This DAG is paused" in tab.value(f"{_FRAME}.body.innerText")
    tab.value(f"{_FRAME}.querySelector('#form button').click()")
    tab.wait_for("location.pathname.startsWith('/dags/durability_check/runs/manual__')")
    run = site.airflow.newest_run("durability_check")
    assert run["conf"] == {"topologies": ["clicks"]}
    assert tab.value("decodeURIComponent(location.pathname)").startswith(
        f"/dags/durability_check/runs/{run['dag_run_id']}"
    )
    assert run["triggering_user_name"] == "admin"


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_form_should_start_one_run_with_what_was_entered_and_say_why_airflow_refuses(tab: Tab, site: Site) -> None:
    tab.open(f"{site.url}/streams/applications/clicks")
    tab.wait_for("document.querySelector('[data-key^=\"restore_oncall\"]') !== null")
    tab.value("document.querySelector('[data-key^=\"restore_oncall\"]').click()")
    tab.wait_for("document.getElementById('form') !== null")
    assert tab.value("document.getElementById('p-topology').value") == "clicks"
    assert tab.value("document.getElementById('p-dry_run').checked") is True
    # The browser itself asks for the reason, and sends nothing.
    tab.value("document.querySelector('#form button').click()")
    assert tab.value("document.querySelector(':invalid:not(form)').id") == "p-reason"
    # What it lets through, Airflow refuses: it alone knows all rules.
    tab.value("document.getElementById('p-reason').value = 'the disk <died>'")
    tab.value("document.getElementById('p-tasks').value = '0_0\\n  none  \\n'")
    tab.value("document.querySelector('#form button').click()")
    tab.wait_for("document.getElementById('answer').innerText.startsWith('Airflow refuses it: ')")
    assert "none" in tab.value("document.getElementById('answer').innerText")
    assert tab.value("document.querySelector('#form button').disabled") is False
    tab.value("document.getElementById('p-tasks').value = '0_0\\n  0_1  \\n'")
    # The answers to two requests are lost: a proxy gives up, and the connection breaks.
    for lost in ("return new Response('', {status: 504})", "throw new TypeError('lost')"):
        tab.value(
            "(() => { const real = fetch; window.fetch = async (...sent) => { window.fetch = real; await real(...sent);"
            f" {lost}; }}; }})()"
        )
        tab.value("document.querySelector('#form button').click()")
        tab.wait_for("window.fetch.toString().includes('native')")
        tab.wait_for("document.getElementById('answer').innerText.startsWith('Airflow did not answer')")
    # The person changes a value, but the run has begun with the first ones.
    tab.value("document.getElementById('p-dry_run').click()")
    tab.value("document.querySelector('#form button').click()")
    tab.wait_for("document.getElementById('answer').innerText.startsWith('This form has started its run already')")
    tab.value("document.getElementById('p-dry_run').click()")
    tab.value("document.querySelector('#form button').click()")
    tab.wait_for("location.pathname.startsWith('/dags/restore_oncall/runs/manual__')")
    runs = site.get("/api/v2/dags/restore_oncall/dagRuns", "admin").json()["dag_runs"]
    assert [run["conf"] for run in runs] == [
        {
            "topology": "clicks",
            "source": "fastest",
            "tasks": ["0_0", "0_1"],
            "stores": [],
            "target": "latest",
            "dry_run": True,
            "reason": "the disk <died>",
            "relaunch_timeout_s": 300,
            "drain_timeout_s": 1800,
        }
    ]


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_message_in_airflows_frame_should_lead_out_of_it(tab: Tab, site: Site) -> None:
    tab.open(f"{site.url}/plugin/streams")
    tab.wait_for(f"Boolean({_FRAME}?.querySelector('h1'))")
    tab.value(
        "document.querySelector('iframe').contentWindow.location = '/streams/forms/restore_oncall?topology=unknown'"
    )
    tab.wait_for(f"{_FRAME}?.querySelector('h1')?.textContent === 'This address is not right'")
    tab.value(f"{_FRAME}.querySelector('.button').click()")
    tab.wait_for("location.pathname === '/'")


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_form_should_be_for_those_who_may_trigger_its_dag(site: Site) -> None:
    refused = site.get("/streams/forms/restore_oncall?topology=clicks", "guest")
    assert (refused.status_code, refused.json()["detail"]) == (
        403,
        "you may see the DAG restore_oncall, but not trigger it",
    )
    assert "From the link" not in site.get(_FORM, "admin").text
    assert "From the link you followed; otherwise true." in site.get(f"{_FORM}&dry_run=false", "admin").text
    for path, status, said in (
        ("restore_oncall?topology=unknown", 422, "unknown cannot be the value of the parameter topology"),
        ("restore_oncall?nothing=1", 422, "the DAG restore_oncall has no parameter nothing"),
        ("savepoint", 404, "Airflow has no DAG savepoint"),
        ("example", 404, "there is no DAG example"),
    ):
        answer = site.get(f"/streams/forms/{path}", "admin")
        assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_the_menu_should_have_the_page_and_the_dag_of_a_stream_a_tab(tab: Tab, site: Site) -> None:
    tab.open(f"{site.url}/")
    tab.wait_for("document.querySelector('a[href$=\"/plugin/streams\"]') !== null")
    tab.open(f"{site.url}/dags/stream__clicks/plugin/stream")
    tab.wait_for(f"{_FRAME}?.querySelector('h1')?.textContent === 'clicks'")
    tab.open(f"{site.url}/dags/durability_check/plugin/stream")
    tab.wait_for(f"{_FRAME}?.querySelector('h1')?.textContent === 'This DAG keeps no stream running'")


@pytest.mark.airflow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("path", ["/streams/", "/streams/applications/clicks", _FORM])
def test_the_page_should_be_readable_in_every_size_and_light(
    tab: Tab, site: Site, path: str, width: int, dark: bool
) -> None:
    site.outage()
    tab.look_like(width, dark=dark)
    tab.open(site.url + path)
    if path != _FORM:
        tab.wait_for("document.getElementById('live').textContent === 'Live'")
    if path.endswith("applications/clicks"):
        tab.wait_for("document.querySelectorAll('#s-sizes polyline').length === 2")
    assert tab.value(_OVERFLOW) == 0
    assert tab.barriers() == []
    ground = tab.value("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == ("rgb(17, 20, 24)" if dark else "rgb(255, 255, 255)")
    assert [address for address in tab.requests if not address.startswith((site.url, "data:"))] == []
    assert tab.errors == []


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_field_without_a_label_should_be_found(tab: Tab, site: Site) -> None:
    tab.open(site.url + _FORM)
    tab.value("document.querySelector('label[for=p-reason]').remove()")
    assert [found for found in tab.barriers() if found.startswith("label: ") and 'id="p-reason"' in found]


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_the_keyboard_should_reach_everything_and_keep_its_place(tab: Tab, site: Site) -> None:
    tab.open(f"{site.url}/streams/")
    tab.wait_for("document.getElementById('live').textContent === 'Live'")
    tab.press("Tab")
    assert tab.value("document.activeElement.className") == "skip"
    tab.value("document.querySelector('[data-key=clicks]').focus()")
    tab.value("window.old = document.activeElement")
    site.instance(generation=9)
    tab.wait_for("!window.old.isConnected")
    assert tab.value("document.activeElement.dataset.key") == "clicks"
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") in {"solid", "auto"}


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_only_pages_of_the_streams_own_cases_should_be_sent(site: Site) -> None:
    case = Case(_CASE, "restore_oncall", "clicks", "clicks", {}, True, "try it", wall_clock_ms(), "run-1")
    folder = CaseFolder.of(site.settings.var_dir, "clicks", _CASE, wall_clock_ms)
    folder.open(case)
    assert site.get(f"/streams/applications/clicks/cases/{_CASE}", "guest").status_code == 404
    (folder.folder / "report.html").write_text("<p>the report</p>")
    assert site.get(f"/streams/applications/clicks/cases/{_CASE}", "guest").text == "<p>the report</p>"
    for path in ("cases/..%2f..%2fsecrets.json", "cases/x"):
        assert site.get(f"/streams/applications/clicks/{path}", "guest").status_code == 404
    # The page of an audit shows records.
    assert site.get("/streams/applications/clicks/audit", "admin").status_code == 404
    page = site.settings.var_dir / "audit" / "clicks" / "pages" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>the audit</p>")
    assert site.get("/streams/applications/clicks/audit", "admin").text == "<p>the audit</p>"
    assert site.get("/streams/applications/clicks/audit", "guest").status_code == 403
    assert site.get("/streams/applications/unknown", "admin").status_code == 404


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_no_page_should_show_a_secret(site: Site) -> None:
    kept = json.loads(airflow_parts.secrets_file(site.settings).read_text())
    shown = [site.get(path, "admin").text for path in ("/streams/", "/streams/applications/clicks")]
    for secret in (_SECRET, *kept.values(), *site.tokens.values()):
        assert not any(secret in text for text in shown)
    headers = site.get("/streams/", "admin").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"

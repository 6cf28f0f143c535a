"""The HTML of the page: its words in each state, escaping, and a style for every shape of the drawing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.support.overview import NOW, PLAN, application, checked, instance, live, overview

from tidemark import overview as package
from tidemark.names import TaskId, TopicPartition
from tidemark.overview.application import ProcessFiles
from tidemark.overview.chart import size_chart, throughput_chart
from tidemark.overview.dead_letter_samples import DeadLetterSample
from tidemark.overview.figures import drawing_figures
from tidemark.overview.forms import DagForm, Parameter, fields_of
from tidemark.overview.history import AuditView, CheckView, History
from tidemark.overview.live import LiveView
from tidemark.overview.pages import (
    APPLICATION_SECTIONS,
    OVERVIEW_SECTIONS,
    Links,
    application_sections,
    form_page,
    message_page,
    overview_sections,
    whole_page,
)
from tidemark.overview.rights import Rights
from tidemark.overview.store_history import SizeHistory, SizePoint
from tidemark.overview.stores import SavepointView, StoreView
from tidemark.store_sizes import KnownSizes
from tidemark.supervision.hold import Hold
from tidemark.supervision.local_instances import RunningRestore
from tidemark.supervision.run_file import LOST
from tidemark.topology.drawing.layout import live_picture
from tidemark.topology_loader import load, names
from tidemark.verdict import MESSAGE_WITHOUT_RECORDS, Finding, Verdict

LINKS = Links("/air", "/air/streams")
DAGS = frozenset(
    {"lag_check", "restore_drill", "restore_oncall", "savepoint", "upgrade", "rescale", "exactly_once_audit"}
)
MAY = Rights(DAGS | {"stream__clicks"}, DAGS)
READS = Rights(DAGS | {"stream__clicks"})
EVIL = "<script>alert(1)</script>"
FAULT = "no broker answers at 127.0.0.1:1"
WELL = application(
    instance(), live=live(lag=12), history=History(), savepoint=SavepointView("s", NOW - 9000), stores=()
)
FAILING = replace(WELL, history=checked("lag", Verdict.FAILED, message=EVIL))


def of_all(*applications, rights=MAY, **given):
    return overview_sections(overview(*applications, **given), rights, LINKS)


def of_one(app, rights=MAY, **given):
    return application_sections(overview(app, **given), app, rights, LINKS)


def text(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_the_first_sentence_should_say_whether_all_is_well():
    assert "The stream is well" in text(of_all(WELL)["summary"])
    assert "All 2 streams are well" in text(of_all(WELL, WELL)["summary"])
    stopped = application(is_wanted=False)
    assert "1 of 2 streams runs, and none needs you" in text(of_all(WELL, stopped)["summary"])
    assert "No stream runs, and none should" in text(of_all(stopped)["summary"])
    assert "1 of 2 streams needs you" in text(of_all(replace(FAILING, topology="other"), WELL)["summary"])
    assert "Kafka does not answer" in text(of_all(WELL, live_fault=FAULT)["summary"])
    assert "There are no streams yet" in text(of_all()["summary"])
    assert "The topology odd cannot be loaded" in text(of_all(WELL, unloadable={"odd": "no function"})["summary"])


def test_a_copy_of_a_topology_should_be_named_without_doubt_about_the_streams():
    """The stream of its application belongs to another module, so all is known of it."""
    summary = text(
        of_all(WELL, copies={"next": "the application id belongs to the module topologies/clicks.py"})["summary"]
    )
    assert "The stream is well" in summary
    assert "The topology next is not a stream. The application id belongs to the module topologies/clicks.py" in summary


@pytest.mark.parametrize(
    ("app", "given", "missing"),
    [
        (WELL, {"history_fault": "no database"}, "the history"),
        (WELL, {"unloadable": {"odd": "no function"}}, "every topology"),
        (replace(WELL, history=None), {}, "the history"),
        (replace(WELL, live=None), {"live_is_known": False}, "the live figures"),
        (replace(WELL, are_files_known=False), {}, "the state of the processes"),
        (replace(WELL, live=None, history=None), {}, "the live figures, the history"),
    ],
)
def test_nothing_should_be_called_well_before_everything_is_known_of_it(app, given, missing):
    stopped = application(is_wanted=False)
    for others in ([], [WELL], [stopped]):
        summary = of_all(app, *others, **given)["summary"]
        assert f"No fault is known, but this has not been read: {missing}" in text(summary)
        assert "lead good" not in summary


UNREADABLE = replace(WELL, live=LiveView(PLAN, fault=FAULT), live_fault=FAULT)
UNCOUNTED = replace(WELL, live=replace(live(), letters_fault=FAULT))


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (UNREADABLE, "The live figures of clicks cannot be read"),
        # Its lag and rates are known.
        (UNCOUNTED, "The dead letters of clicks cannot be counted"),
    ],
)
def test_the_first_sentence_should_name_the_stream_of_which_something_cannot_be_read(app, said):
    reading = replace(WELL, live=None)
    for others, more in (
        ([], ""),
        ([WELL], ""),
        ([application(is_wanted=False)], ""),
        ([reading], ", and this has not been read: the live figures"),
    ):
        summary = of_all(app, *others)["summary"]
        assert text(summary).endswith(f"Streams {said}{more}")
        assert "No fault is known" not in text(summary)
        assert "lead bad" in summary


def test_the_first_sentence_should_tell_live_figures_and_dead_letters_apart():
    summary = text(of_all(UNREADABLE, replace(UNCOUNTED, topology="other"))["summary"])
    assert summary.endswith("The live figures of clicks cannot be read. The dead letters of other cannot be counted")


def test_the_row_of_a_stream_should_say_why_its_dead_letters_cannot_be_counted():
    said = f"Its dead letters cannot be counted: {FAULT}."
    assert said in text(of_all(UNCOUNTED)["streams"])
    assert said not in text(of_all(UNCOUNTED, live_fault=FAULT)["streams"])
    stopped = application(is_wanted=False, live=UNCOUNTED.live)
    assert said not in text(of_all(stopped)["streams"])


def test_what_is_not_known_of_a_stream_that_is_stopped_should_not_matter():
    stopped = application(is_wanted=False, live=LiveView(PLAN, fault=FAULT), live_fault=FAULT)
    sections = of_all(WELL, stopped)
    assert "1 of 2 streams runs, and none needs you" in text(sections["summary"])
    assert FAULT not in sections["streams"]


def test_the_fault_of_one_stream_should_be_in_its_row():
    faulty = replace(WELL, live=LiveView(PLAN, fault=FAULT), live_fault=FAULT)
    assert f"{FAULT.capitalize()}." in text(of_all(faulty)["streams"])
    assert FAULT.capitalize() not in text(of_all(faulty, live_fault=FAULT)["streams"])


def test_nothing_should_be_in_the_list_of_concerns_if_all_is_well():
    assert text(of_all(WELL)["concerns"]) == ""


def test_a_concern_should_have_a_button_that_opens_the_form_of_the_dag_filled_in():
    said = of_all(FAILING)["concerns"]
    assert 'href="/air/streams/forms/lag_check?topologies=clicks"' in said
    assert "target" not in said


def test_a_form_should_show_input_as_text_and_lead_back_to_its_stream():
    parameters = {
        "reason": Parameter(EVIL, {"type": "string", "title": EVIL}, EVIL),
        "topology": Parameter("clicks", {"type": "string", "enum": ["clicks", EVIL]}, EVIL),
        "tasks": Parameter([EVIL], {"type": "array", "items": {"type": "string"}}, EVIL),
    }
    form = DagForm("savepoint", EVIL, is_paused=True, parameters=parameters)
    page = form_page(form, fields_of(form, {}), LINKS, "clicks", "manual__1", "n")
    assert EVIL not in page
    assert page.count("&lt;script&gt;") == 8
    assert "This DAG is paused" in text(page)
    assert 'data-runs="/air/api/v2/dags/savepoint/dagRuns"' in page
    assert page.count('href="/air/streams/applications/clicks"') == 2
    without = form_page(replace(form, is_paused=False), [], LINKS, None, "manual__1", "n")
    assert "This DAG is paused" not in text(without)
    assert '<a href="/air/streams/">Cancel</a>' in without


def test_a_form_should_ask_for_the_topology_if_its_address_names_none():
    topology = Parameter(None, {"type": "string", "enum": ["clicks", "shopping"]}, "Its name.")
    form = DagForm("savepoint", "Takes a savepoint", is_paused=False, parameters={"topology": topology})
    choose = '<option value="">Choose…</option>'
    page = form_page(form, fields_of(form, {}), LINKS, None, "manual__1", "n")
    assert f"{choose}<option>clicks</option><option>shopping</option></select>" in page
    named = form_page(form, fields_of(form, {"topology": ["shopping"]}), LINKS, "shopping", "manual__1", "n")
    assert "<option>clicks</option><option selected>shopping</option></select>" in named
    assert choose not in named


def test_a_reader_should_see_the_concern_and_no_button():
    for sections in (of_all(FAILING, rights=READS), of_one(FAILING, rights=READS)):
        assert "The check lag failed" in text(sections["concerns"])
        assert not any('class="button' in html for html in sections.values())
    assert 'class="button' in of_one(FAILING)["head"]


def test_a_reader_should_find_a_link_to_the_dag_of_a_stream_that_is_down():
    down = application(instance(state=LOST, is_alive=False))
    for sections in (of_all(down, rights=READS), of_one(down, rights=READS)):
        assert '<a target="_top" href="/air/dags/stream__clicks"' in sections["concerns"]
        assert not any('class="button' in html for html in sections.values())


def test_the_row_of_a_stream_should_have_its_figures():
    row = text(of_all(WELL)["streams"])
    assert "clicks Running 1,234 12 now 250 ms" in row
    assert "9 s ago" in row


def test_an_old_copy_of_a_store_should_be_listed_and_not_be_counted():
    copies = (("0", False), ("1", True), ("standby-0", False))
    rows = tuple(
        StoreView(TaskId(0, 1), "clicks", holder, KnownSizes(5), KnownSizes(1 << 20), is_old=is_old)
        for holder, is_old in copies
    )
    app = replace(WELL, stores=rows)
    shown = text(of_one(app)["stores"])
    assert [f"{name} 5" in shown for name in ("instance 0", "instance 1, old", "standby-0")] == [True] * 3
    assert app.bytes_disk == 1 << 20


def test_a_figure_that_was_not_read_yet_should_not_look_like_one_that_is_unknown():
    app = application(instance())
    assert "Lag … offsets" in text(of_one(app, live_is_known=False)["figures"])
    assert "Lag — offsets" in text(of_one(app)["figures"])


def test_without_kafka_the_page_should_say_so_and_show_the_rest():
    sections = of_one(replace(WELL, live=None, live_fault=FAULT))
    assert f"Lag, rates and late records are not known. {FAULT.capitalize()}" in text(sections["head"])
    assert "Not known while Kafka does not answer." in text(sections["throughput"])
    assert "1,234 records/s" in text(sections["figures"])


def test_without_the_database_the_page_should_say_so():
    sections = of_one(replace(WELL, history=None, history_fault="the database of facts does not answer"))
    assert "Checks, drills, audits and events are not known" in text(sections["head"])
    assert "does not answer" in text(sections["checks"])


def test_files_that_cannot_be_read_should_need_a_person_and_not_look_like_a_stream_that_never_ran():
    unknown = application(are_files_known=False, files_fault=f"permission denied: {EVIL}")
    sections = of_one(unknown)
    assert "Not known" in text(sections["head"])
    assert "Not known, see above." in text(sections["processes"])
    assert "its files cannot be read: permission denied: &lt;script&gt;" in text(sections["concerns"])
    assert "The stream needs you" in text(of_all(unknown)["summary"])
    assert "Reading…" in text(of_one(application(are_files_known=False))["processes"])


def test_a_fault_of_the_disk_should_be_shown_where_its_figures_are_missing():
    app = application(instance(), disk_fault="input/output error")
    sections = of_one(app)
    for name in ("stores", "sizes"):
        assert "The stores on this machine cannot be read. Input/output error." in text(sections[name])
    assert "State on this machine —" in text(sections["figures"])


def test_a_restore_should_have_a_bar_with_rate_and_time_left():
    restore = RunningRestore(0, "page-clicks", "c[1]", 500, 250.0, 14.2, 0.63)
    said = of_one(application(instance(state="RESTORING", restore=restore)))["restores"]
    assert 'value="63"' in said
    assert "63 %, 250 records/s, 14.2 s left" in text(said)


def test_every_text_from_outside_should_be_escaped():
    held = ProcessFiles(hold=Hold(EVIL, EVIL, NOW), instances=(instance(instance=0, topology_version=EVIL),))
    app = replace(FAILING, files=held, live_fault=EVIL, savepoint=SavepointView(fault=EVIL))
    for sections in (
        of_one(app),
        of_all(app, unloadable={EVIL: EVIL}, copies={EVIL: EVIL}, live_fault=EVIL, history_fault=EVIL),
    ):
        assert not any(EVIL in html for html in sections.values())
        assert any("&lt;script&gt;" in html for html in sections.values())


def test_every_section_should_be_replaceable_by_its_name():
    for sections, known in ((of_all(WELL), OVERVIEW_SECTIONS), (of_one(WELL), APPLICATION_SECTIONS)):
        assert tuple(sections) == known
        for name, html in sections.items():
            assert html.strip().startswith(f'<section id="s-{name}"')


class _Page(HTMLParser):
    """Collects ids, addresses, and tags that are left open."""

    def __init__(self, html):
        super().__init__()
        self.ids, self.addresses, self.open = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.addresses += [given[name] for name in ("href", "src") if name in given]
        if tag not in {"meta", "line", "rect", "path", "polyline", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("sections", [of_all(WELL, FAILING), of_one(FAILING), of_all()])
def test_a_page_should_be_well_formed_and_load_nothing_from_elsewhere(sections):
    html = whole_page("Streams", sections, LINKS, "clicks", "abc")
    page = _Page(html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith(("/air/", "#")) for address in page.addresses)
    assert re.findall(r"https?://[^\s\"<]+", html.replace("http://www.w3.org/2000/svg", "")) == []
    assert html.count('nonce="abc"') == 2


def test_a_message_should_lead_somewhere():
    page = _Page(message_page("Log in", EVIL, "/auth/login", "Log in", "abc"))
    assert page.addresses == ["/auth/login"]


@pytest.mark.parametrize("name", names())
def test_every_shape_of_the_drawing_should_have_a_style_in_the_page(name):
    rules = (Path(package.__file__).parent / "page.css").read_text()
    used = set(re.findall(r'class="([a-z]+)"', live_picture(load(name).plan(), drawing_figures(WELL)))) - {
        "drawing",
        "name",
    }
    assert {kind for kind in used if f".drawing .{kind} " not in rules and f".drawing .{kind}," not in rules} == set()


def test_the_drawing_should_show_rates_lag_keys_and_late_rows():
    rows = (
        StoreView(TaskId(0, 0), "user-sessions", "0", KnownSizes(1000), KnownSizes(2048)),
        StoreView(TaskId(0, 1), "user-sessions", "0", KnownSizes(500), KnownSizes(1024)),
        StoreView(TaskId(0, 1), "user-sessions", "1", KnownSizes(400), KnownSizes(900), is_old=True),
        StoreView(TaskId(0, 1), "user-sessions", "standby-0", KnownSizes(9), KnownSizes(9)),
    )
    window = live(lag=12, committed_ms=NOW - 10_000, read=(0, 700), late=7, written=30)
    found = drawing_figures(application(instance(), live=window, stores=rows))
    assert [line.split() for line in found.topics["clicks"]] == [["in", "70/s"], ["lag", "12"]]
    assert [line.split() for line in found.topics["page-clicks"]] == [["out", "3/s"]]
    assert [line.split() for line in found.stores["user-sessions"]] == [["1,500", "keys"], ["3.0", "kB"]]
    assert found.subtopologies[0] == "7 late"
    drawn = live_picture(PLAN, found)
    for shown in ("in         70/s", "lag        12", "3.0 kB", "Sub-topology 0, 7 late"):
        assert shown in drawn


LETTERS = (
    DeadLetterSample("not JSON", 0, 7, NOW - 5000, TopicPartition("clicks", 1), 12, "patient-17", EVIL),
    DeadLetterSample("refused", 0, 8, NOW - 5000, None, None, None, None),
)
WITH_LETTERS = replace(
    WELL, live=replace(live(), dead_letters=2, reasons={"not JSON": 1, "refused": 1}, samples=LETTERS)
)


def test_samples_of_dead_letters_should_be_shown_to_those_who_may_run_the_stream():
    html = of_one(WITH_LETTERS, rights=Rights(DAGS | {"stream__clicks"}, DAGS | {"stream__clicks"}))["letters"]
    assert "not JSON 5 s ago clicks[1], offset 12 patient-17 &lt;script&gt;" in text(html)
    assert "refused 5 s ago unknown none none" in text(html)
    assert EVIL not in html


@pytest.mark.parametrize("rights", [READS, MAY])
def test_who_may_not_run_the_stream_should_see_reasons_and_no_record(rights):
    sections = of_one(WITH_LETTERS, rights=rights)
    assert "Records are shown to those who may run the DAG stream__clicks" in text(sections["letters"])
    assert "not JSON" in sections["letters"]
    for html in sections.values():
        assert "patient-17" not in html
        assert "offset 12" not in html


@pytest.mark.parametrize(
    ("dead_letters", "says"),
    [(0, "There are none: every record"), (1, "The topic holds about 1, and none of the newest could be shown.")],
)
def test_only_an_empty_topic_should_be_said_to_have_no_dead_letters(dead_letters, says):
    app = replace(WELL, live=replace(live(), dead_letters=dead_letters))
    assert says in text(of_one(app)["letters"])


def test_dead_letters_that_could_not_be_read_should_not_be_said_to_be_none():
    app = replace(WELL, live=replace(live(), letters_fault=f"{EVIL} a transaction is open"))
    html = of_one(app)["letters"]
    assert "The dead letters are not known. &lt;script&gt;" in text(html)
    assert "There are none" not in html


ROW = {"topic": "bills", "partition": 1, "offset": 17, "key": "patient-17"}
BAD = Finding(
    "x", Verdict.FAILED, "first key=patient-17", {"examples": [ROW], MESSAGE_WITHOUT_RECORDS: "2 rows, first offset=17"}
)
CHECK = CheckView("audit", NOW - 5000, (BAD, BAD))
AUDITED = replace(WELL, history=History(checks=(CHECK,), audit=AuditView(NOW, Verdict.FAILED)))


def test_findings_should_show_records_to_those_who_may_run_the_stream():
    runs = Rights(DAGS | {"stream__clicks"}, DAGS | {"stream__clicks"})
    assert "first key=patient-17" in text(of_one(AUDITED, rights=runs)["checks"])
    assert "applications/clicks/audit" in of_one(AUDITED, rights=runs)["checks"]
    assert "first key=patient-17" in text(of_all(AUDITED, rights=runs)["concerns"])


@pytest.mark.parametrize("rights", [READS, MAY])
def test_findings_should_show_who_may_not_run_the_stream_coordinates_and_no_record(rights):
    for sections in (of_all(AUDITED, rights=rights), of_one(AUDITED, rights=rights)):
        assert "2 rows, first offset=17" in sections["concerns"]
        assert not any("patient-17" in html or "clicks/audit" in html for html in sections.values())


def test_sizes_over_time_should_have_a_line_per_store_and_say_it_in_words():
    points = (SizePoint(NOW - 7_200_000, 100, 2048), SizePoint(NOW - 3_600_000, None, 4096), SizePoint(NOW, 150, 3072))
    html = of_one(replace(WELL, sizes=SizeHistory({"user-sessions": points})))["sizes"]
    assert "Keys of user-sessions: 100 at first, at most 150, 150 now" in html
    assert "Bytes of user-sessions: 2.0 kB at first, at most 4.0 kB, 3.0 kB now" in html
    assert html.count("<polyline") == 2
    assert "2 h ago" in text(html)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (None, "Reading…"),
        (SizeHistory(), "There is no store on this machine yet."),
        (SizeHistory({"n": (SizePoint(NOW, 5, None),)}), "n 5 one sample — now"),
        (SizeHistory(fault=f"{EVIL} line 2 is not a sample"), "Earlier sizes are not known. &lt;script&gt;"),
    ],
)
def test_sizes_over_time_should_say_why_there_is_no_line(sizes, says):
    html = of_one(replace(WELL, sizes=sizes))["sizes"]
    assert says in text(html)
    assert "<polyline" not in html


def test_the_line_of_a_size_should_begin_at_zero_and_keep_the_distance_in_time():
    drawn = size_chart(EVIL, [(0, 0), (900, 50), (1000, 100)], str)
    assert 'points="0,38 216,20 240,2"' in drawn
    assert EVIL not in drawn
    assert 'points="0,38 240,38"' in size_chart("n", [(5, 0), (5 + 1, 0)], str)


def test_the_chart_should_say_in_words_what_it_shows():
    assert "10 on average, 30 at most, 0 now" in throughput_chart((0.0, 30.0, 0.0))
    assert throughput_chart((0.0, 30.0, 0.001)).count("<rect") == 2
    assert "<rect" not in throughput_chart((0.0, 0.0))


def test_a_failed_stream_whose_dag_is_on_should_not_be_said_to_be_paused():
    failed = instance(state="ERROR", is_alive=False, exit_code=30)
    assert "Its DAG is paused" not in text(of_one(application(failed))["head"])
    assert "Its DAG is paused" in text(of_one(application(failed, is_wanted=False))["head"])


def test_a_standby_that_ended_should_be_listed_with_its_exit_code():
    ended = instance(instance="standby-0", state=LOST, is_alive=False, exit_code=137)
    files = ProcessFiles(instances=(instance(),), standbys=(ended,))
    said = text(of_one(application(files=files))["processes"])
    assert re.search(r"standby-0\s+Lost.*exit code 137", said)

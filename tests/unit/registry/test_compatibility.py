"""Every case of the table in `docs/upgrade.md`: what happens to a store, what is refused, and with which remedy."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tidemark.errors import StartRefused
from tidemark.operations.change.upgrade import not_recomputable
from tidemark.registry.compatibility import StoreChangeKind, carry, new_columns, obstacles
from tidemark.registry.computations import BEGAN_LATER, CARRIED_OVER, CHANGED, UNRECORDED, computations, source_sql
from tidemark.registry.declarations import parse_declared
from tidemark.registry.description import Description, describe_state
from tidemark.registry.reader import describe_resolved, resolved
from tidemark.registry.store_roles import keys_in
from tidemark.topology.builder import Topology
from tidemark.topology.stores import Materialized
from tidemark.topology.windows import tumbling

PAGE = Path(__file__).resolve().parents[3] / "docs/upgrade.md"
SCHEMA = "id STRING, city STRING, v BIGINT"
AS_A_WHOLE = "refused as a whole"
BEGINS_ANEW = "begins again"


def counted(version="2", *, store="n", filtered=None, key="id", window=None, retention=None, topic="in", **aggregates):
    """A count by key in the store `n`; what is given differs."""
    topology = Topology("app", version=version)
    stream = topology.stream(topic, schema=SCHEMA, key=key)
    stream = stream.filter(filtered) if filtered else stream
    grouped = stream.group_by_key()
    grouped = grouped.windowed_by(window) if window else grouped
    more = {"retention": retention} if retention else {}
    grouped.aggregate(store=store, **(aggregates or {"n": "count(*)"}), **more)
    return topology


def table(version="2", *, schema="v BIGINT", logging=True, ttl=None, optimised=False):
    """A table in the store `n`."""
    topology = Topology("app", version=version, optimised=optimised)
    topology.table("in", schema=schema, store=Materialized("n", logging=logging, ttl=ttl))
    return topology


def and_another(version="2", *, topic="in"):
    """The count in `n`, and one of that topic in `m`."""
    topology = counted(version)
    topology.stream(topic, schema=SCHEMA, key="id").group_by_key().aggregate(store="m", n="count(*)")
    return topology


COUNT = counted("1")
TWO = counted("1", n="count(*)", most="max(v)")
WINDOWED = counted("1", window=tumbling("60s"), retention="6h")
TABLE = table("1")
WITH_TTL = table("1", ttl="1d")


@dataclass(frozen=True)
class Case:
    """`summary` and `declared` are the page's; `says` must stand in what the plan says of `store`, old or new."""

    summary: str
    declared: str
    change_kind: StoreChangeKind | str
    old: Topology
    new: Topology
    says: str = ""
    store: str = "n"


MORE = counted(n="count(*)", most="max(v)")
STATELESS = "changes filters, selects, sinks, grace, profiles, where a store is held"
FOLDS = "computes an aggregate in another way"
FIVE_MINUTES = counted(window=tumbling("5m"), retention="6h")
WITH_CITY = table(schema="v BIGINT, city STRING")
OPTIMISED = table("1", optimised=True)
OPTIMISED_WITH_CITY = table("1", schema="v BIGINT, city STRING", optimised=True)
SWITCHED_ON = "makes the topic of a table its changelog"
OF_TOPIC = "adds a column to a table whose topic is its changelog"
CASES = [
    Case("has the same store", "", StoreChangeKind.KEPT, COUNT, counted(), "unchanged"),
    Case(STATELESS, "", StoreChangeKind.KEPT, COUNT, counted(filtered="v > 3"), "unchanged"),
    Case(
        "has an additional store", "", StoreChangeKind.NEW, COUNT, and_another(), "what is processed from now on", "m"
    ),
    Case("lacks the store", "", StoreChangeKind.REFUSED, and_another("1"), counted(store="m"), "no such store"),
    Case("lacks the store", "--drop n", StoreChangeKind.DROPPED, and_another("1"), counted(store="m"), "declared"),
    Case("has another name for the store", "", StoreChangeKind.REFUSED, COUNT, counted(store="m"), "--rename n=NEW"),
    Case(
        "has another name for the store",
        "--rename n=m",
        StoreChangeKind.COPIED,
        COUNT,
        counted(store="m"),
        "renamed from n",
    ),
    Case("adds an aggregate", "", StoreChangeKind.REFUSED, COUNT, MORE, "--add n.most"),
    Case("adds an aggregate", "--add n.most", StoreChangeKind.COPIED, COUNT, MORE, "most is null"),
    Case("adds an aggregate", "--add n.most=0", StoreChangeKind.COPIED, COUNT, MORE, "most is 0"),
    Case(
        "adds a mean",
        "--add n.most=0",
        StoreChangeKind.REFUSED,
        COUNT,
        counted(n="count(*)", most="mean(v)"),
        "begin at null",
    ),
    Case("lacks an aggregate", "", StoreChangeKind.REFUSED, TWO, counted(), "--drop n.most"),
    Case("lacks an aggregate", "--drop n.most", StoreChangeKind.COPIED, TWO, counted(), "most is discarded"),
    Case(
        "has the aggregates in another order",
        "",
        StoreChangeKind.COPIED,
        TWO,
        counted(most="max(v)", n="count(*)"),
        "order",
    ),
    Case(FOLDS, "", StoreChangeKind.REFUSED, COUNT, counted(n="sum(v)"), "was count(*), now it is sum(v)"),
    Case(FOLDS, "--drop n", StoreChangeKind.DROPPED, COUNT, counted(n="sum(v)"), BEGINS_ANEW),
    Case(
        "changes the window",
        "",
        StoreChangeKind.REFUSED,
        WINDOWED,
        FIVE_MINUTES,
        "windows of 1m, now it holds windows of 5m",
    ),
    Case("changes the window", "--drop n", StoreChangeKind.DROPPED, WINDOWED, FIVE_MINUTES, BEGINS_ANEW),
    Case(
        "changes the key",
        "",
        StoreChangeKind.REFUSED,
        COUNT,
        counted(key="city"),
        "its keys were id, now they are city",
    ),
    Case("changes the key", "--drop n", StoreChangeKind.DROPPED, COUNT, counted(key="city"), BEGINS_ANEW),
    Case(
        "keeps windows longer",
        "",
        StoreChangeKind.COPIED,
        WINDOWED,
        counted(window=tumbling("60s"), retention="2d"),
        "back",
    ),
    Case(
        "keeps windows shorter",
        "",
        StoreChangeKind.COPIED,
        WINDOWED,
        counted(window=tumbling("60s"), retention="1h"),
        "older",
    ),
    Case("adds a column to a table", "", StoreChangeKind.REFUSED, TABLE, WITH_CITY, "--add n.city"),
    Case("adds a column to a table", '--add n.city="-"', StoreChangeKind.COPIED, TABLE, WITH_CITY, "city is '-'"),
    Case(
        "changes a column's type",
        "",
        StoreChangeKind.REFUSED,
        TABLE,
        table(schema="v STRING"),
        "was BIGINT, now it is STRING",
    ),
    Case("gives a table a ttl", "", StoreChangeKind.REFUSED, TABLE, table(ttl="1d"), "no age", "n-order"),
    Case("gives a table a ttl", "--drop n", StoreChangeKind.DROPPED, TABLE, table(ttl="1d"), BEGINS_ANEW),
    Case("removes the ttl", "", StoreChangeKind.KEPT, WITH_TTL, table(), "unchanged"),
    Case(
        "removes the store's changelog", "", StoreChangeKind.REFUSED, TABLE, table(logging=False), "no longer be logged"
    ),
    Case(SWITCHED_ON, "", StoreChangeKind.REFUSED, TABLE, table(optimised=True), "read again from its topic: --drop n"),
    Case(SWITCHED_ON, "--drop n", StoreChangeKind.READ_AGAIN, TABLE, table(optimised=True), "from its topic"),
    Case(
        OF_TOPIC,
        "",
        StoreChangeKind.REFUSED,
        OPTIMISED,
        table(schema="v BIGINT, city STRING", optimised=True),
        "another city; keep it as it was, or let it be read again from its topic: --drop n",
    ),
    Case(
        OF_TOPIC,
        "--drop n",
        StoreChangeKind.READ_AGAIN,
        OPTIMISED,
        table(schema="v BIGINT, city STRING", optimised=True),
        "from its topic",
    ),
    Case(
        "has the columns of such a table in another order",
        "",
        StoreChangeKind.READ_AGAIN,
        OPTIMISED_WITH_CITY,
        table(schema="city STRING, v BIGINT", optimised=True),
        "another order",
    ),
    Case("reads another topic", "", AS_A_WHOLE, COUNT, counted(topic="other"), "read in, now it reads other"),
    Case(
        "reads an additional topic in its own sub-topology", "", StoreChangeKind.KEPT, COUNT, and_another(topic="other")
    ),
    Case("has the same version number", "", AS_A_WHOLE, COUNT, counted("1", store="m"), "another version"),
]


def described(topology: Topology) -> Description:
    return describe_state(topology.plan(), {"in": 2, "other": 2})


def options(text, name):
    return [value for option, value in re.findall(r"(--\w+) (\S+)", text) if option == name]


def decided(case: Case) -> tuple[StoreChangeKind | str, str]:
    """What becomes of the case's store, and what is said of it."""
    old, new = described(case.old), described(case.new)
    declared = parse_declared(old, new, *(options(case.declared, name) for name in ("--rename", "--drop", "--add")))
    against = obstacles(old, new)
    if against:
        return AS_A_WHOLE, " ".join(against)
    change = next(c for c in carry(old, new, declared) if case.store in (c.was, c.store))
    return change.change_kind, f"{change.why}; {change.remedy}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.summary} {case.declared}")
def test_should_decide_whether_state_can_be_carried_over(case):
    change_kind, summary = decided(case)
    assert change_kind == case.change_kind
    assert case.says in summary


FATES = {
    AS_A_WHOLE: AS_A_WHOLE,
    "is kept": StoreChangeKind.KEPT,
    "is read again": StoreChangeKind.READ_AGAIN,
    "starts empty": StoreChangeKind.NEW,
    "refused": StoreChangeKind.REFUSED,
    "is discarded": StoreChangeKind.DROPPED,
    "is emptied": StoreChangeKind.DROPPED,
    "is copied": StoreChangeKind.COPIED,
}
"""By the page's words, the longer ones first."""


def test_should_list_the_same_cases_on_the_page():
    rows = PAGE.read_text().split("| the new version | declared | the store |\n|---|---|---|\n")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    on_page = [
        (summary, declared.strip("`"), next(f for words, f in FATES.items() if change_kind.startswith(words)))
        for summary, declared, change_kind in cells
    ]
    assert on_page == [(case.summary, case.declared, case.change_kind) for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.summary} {case.declared}")
def test_should_start_without_an_upgrade_only_when_the_state_is_the_same(case):
    starts = case.summary in ("has the same store", STATELESS)
    assert described(case.new).keeps_the_same(described(case.old)) is starts


def test_should_refuse_more_sub_topologies_in_a_rescaled_application():
    old, new = described(COUNT), described(and_another(topic="other"))
    assert obstacles(old, new) == []
    (summary,) = obstacles(replace(old, routing=1), new)
    assert "number of its sub-topologies cannot change" in summary
    assert obstacles(replace(old, routing=1), described(MORE)) == []


def test_should_refuse_a_source_as_changelog_in_a_rescaled_application():
    old, new = described(TABLE), described(table(optimised=True))
    assert obstacles(old, new) == []
    (summary,) = obstacles(replace(old, routing=1), new)
    assert "cannot be the changelogs of n: leave optimised=True out" in summary


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        (0, "x=m", "no store 'x' \\(it has n\\)"),
        (0, "n=x", "no store 'x' \\(it has m\\)"),
        (1, "x", "no store 'x'"),
        (1, "n.x", "no field 'x' \\(it has n\\)"),
        (2, "m.x", "no field 'x'"),
        (2, "m.n=yes", "not JSON"),
    ],
)
def test_should_refuse_a_declaration_about_an_unknown_store_or_field(option, text, message):
    given = [[], [], []]
    given[option] = [text]
    with pytest.raises(StartRefused, match=message):
        parse_declared(described(COUNT), described(counted(store="m")), *given)


def test_should_refuse_a_store_that_is_dropped_and_renamed():
    with pytest.raises(StartRefused, match="choose one"):
        parse_declared(described(COUNT), described(counted(store="m")), ["n=m"], ["n"], [])


EVERY_TYPE = table(schema="v BIGINT, city STRING, age INT, level TINYINT, ok BOOLEAN, height DOUBLE")
AGGREGATES = counted(n="count(*)", most="max(v)", biggest="max(cast(v AS DOUBLE))")


@pytest.mark.parametrize(
    ("old", "new", "added", "problem"),
    [
        (TABLE, EVERY_TYPE, "city=5", "5 cannot be put into city: it is no STRING"),
        (TABLE, EVERY_TYPE, 'city={"a":1}', "it is no STRING"),
        (TABLE, EVERY_TYPE, 'city="\\ud800"', "it is no STRING"),
        (TABLE, EVERY_TYPE, 'city="here"', None),
        (TABLE, EVERY_TYPE, 'age="old"', "'old' cannot be put into age: it is no INT"),
        (TABLE, EVERY_TYPE, "age=1.5", "it is no INT"),
        (TABLE, EVERY_TYPE, "age=2147483647", None),
        (TABLE, EVERY_TYPE, "age=2147483648", "it is no INT"),
        (TABLE, EVERY_TYPE, "level=-128", None),
        (TABLE, EVERY_TYPE, "level=-129", "it is no TINYINT"),
        (TABLE, EVERY_TYPE, "ok=1", "it is no BOOLEAN"),
        (TABLE, EVERY_TYPE, "ok=true", None),
        (TABLE, EVERY_TYPE, "height=2", None),
        (TABLE, EVERY_TYPE, "height=NaN", "it is not a finite number"),
        (TABLE, EVERY_TYPE, "height=1e400", "it is not a finite number"),
        (COUNT, AGGREGATES, "most=9223372036854775807", None),
        (COUNT, AGGREGATES, "most=9223372036854775808", "it is out of the range of a BIGINT"),
        (COUNT, AGGREGATES, "most=1.5", "it is no BIGINT"),
        (COUNT, AGGREGATES, 'biggest="x"', "it is no DOUBLE"),
        (COUNT, AGGREGATES, "biggest=1e308", None),
        (COUNT, AGGREGATES, f"biggest={10**400}", "it is out of the range of a DOUBLE"),
        (COUNT, AGGREGATES, "biggest=NaN", "it is not a finite number"),
    ],
)
def test_should_copy_only_with_added_values_that_can_be_read_again(old, new, added, problem):
    before, after = described(old), described(new)
    others = [f"n.{name}" for name in after.stores["n"].fields if name not in before.stores["n"].fields]
    (change,) = carry(before, after, parse_declared(before, after, [], [], [*others, f"n.{added}"]))
    assert change.change_kind is (StoreChangeKind.COPIED if problem is None else StoreChangeKind.REFUSED)
    assert problem is None or problem in change.why


def followed(before, *topology):
    """The description that the first commits of these topologies leave one after another."""
    for each in topology:
        before = describe_resolved(each.plan(), before, {}, {}, {})
    return before


@pytest.mark.parametrize(
    ("later", "changed"),
    [
        ([COUNT], {}),
        ([counted("1", filtered="v > 3")], {"n": CHANGED}),
        ([counted("1", filtered="v > 3"), COUNT], {"n": CHANGED}),
        ([counted("1", filtered="v > 3"), COUNT, COUNT], {"n": CHANGED}),
    ],
)
def test_should_remember_that_a_store_was_computed_in_another_way(later, changed):
    found = followed(None, COUNT, *later)
    assert found.not_recomputable == changed
    assert Description.from_bytes(found.to_bytes()) == found


def test_should_notice_a_changed_filter_before_the_first_commit_with_it():
    found, filtered = followed(None, COUNT), counted("1", filtered="v > 3").plan()
    assert found.not_recomputable_by(computations(filtered), source_sql(filtered)) == {"n": CHANGED}
    assert found.not_recomputable_by(computations(COUNT.plan()), source_sql(COUNT.plan())) == {}


def beside(*, topic="in", filtered=None, selected=None, aggregate=None):
    """The count in `n`, and another path from a topic; without an aggregate it ends at a sink."""
    topology = counted("2")
    stream = topology.stream(topic, schema=SCHEMA, key="id")
    stream = stream.filter(filtered) if filtered else stream
    stream = stream.select(**selected) if selected else stream
    if aggregate is None:
        stream.to("out")
    else:
        stream.group_by_key().aggregate(store="m", a=aggregate)
    return topology


ELEMENT = {"word": "element_at(split(city, ' '), v)"}
MENDED = {"word": "element_at(split(city, ' '), nullif(v, 0))"}


@pytest.mark.parametrize(
    ("earlier", "later", "changed"),
    [
        (beside(selected=ELEMENT), beside(selected=MENDED), {"n": CHANGED}),
        (beside(selected=MENDED), beside(selected=ELEMENT), {"n": CHANGED}),
        (beside(selected=ELEMENT), COUNT, {"n": CHANGED}),
        (beside(selected=ELEMENT), beside(filtered="v > 0", selected=ELEMENT), {"n": CHANGED}),
        (beside(selected=ELEMENT), beside(selected=ELEMENT), {}),
        # Neither has SQL that could refuse a record.
        (COUNT, beside(), {}),
        # A record of one topic is refused by the SQL for that topic only.
        (beside(topic="other", selected=ELEMENT), beside(topic="other", selected=MENDED), {}),
    ],
)
def test_should_remember_that_the_sql_of_another_path_of_the_source_has_changed(earlier, later, changed):
    """A record for which the SQL of any path raises is a dead letter and reaches no store."""
    found = followed(None, earlier, later)
    assert found.not_recomputable == changed
    assert Description.from_bytes(found.to_bytes()) == found
    plan = later.plan()
    assert followed(None, earlier).not_recomputable_by(computations(plan), source_sql(plan)) == changed


def test_should_remember_that_another_store_of_the_source_is_computed_by_other_sql():
    old, new = (source_sql(beside(aggregate=f"max(length({of['word']}))").plan()) for of in (ELEMENT, MENDED))
    assert old["n"] != new["n"]


def test_should_not_treat_the_sql_of_other_paths_as_changed_when_no_description_has_recorded_it():
    body = json.loads(followed(None, beside(selected=ELEMENT)).to_bytes())
    del body["source_sql"]
    old = Description.from_bytes(json.dumps(body).encode())
    first = followed(old, beside(selected=MENDED))
    assert first.not_recomputable == {}
    assert followed(first, beside(selected=ELEMENT)).not_recomputable == {"n": CHANGED}


def test_should_keep_the_hash_of_a_store_of_json_records_and_give_another_to_one_of_avro():
    """The code at d2e640b6, in which a source had no `value_serde`, computed the first hash: descriptions contain such ones."""

    def found(**serde):
        topology = Topology("app", version="1")
        stream = topology.stream("in", schema=SCHEMA, key="id", **serde).filter("v > 0")
        stream.select("id", "city", "v + 1 AS v").group_by_key().aggregate(store="n", n="count(*)")
        return computations(topology.plan())

    assert found() == {"n": "8c0788af8fb8d4bb"}
    assert found(value_serde="avro") != found()


@pytest.mark.parametrize("later", [COUNT, counted("1", filtered="v > 3")], ids=["same", "changed"])
def test_should_not_compute_a_store_again_whose_past_no_description_has_recorded(later):
    """Its filter may have changed, or a reset may have skipped records, before descriptions had these fields."""
    body = json.loads(described(COUNT).to_bytes())
    for name in ("generations", "computations", "source_sql", "not_recomputable"):
        del body[name]
    old = Description.from_bytes(json.dumps(body).encode())
    found = describe_resolved(later.plan(), old, {}, {}, {})
    assert found.not_recomputable == dict.fromkeys(found.stores, UNRECORDED)
    assert followed(found, later).not_recomputable == found.not_recomputable


def test_should_remember_what_an_upgrade_did_with_the_stores():
    before, after = described(and_another("1")), described(and_another("2"))
    renamed = described(counted(store="k"))
    changes = carry(before, renamed, parse_declared(before, renamed, ["n=k"], ["m"], []))
    assert not_recomputable(renamed, changes) == {"k": CARRIED_OVER}
    changes = carry(before, after, parse_declared(before, after, [], ["m"], []))
    assert not_recomputable(after, changes) == {"m": BEGAN_LATER}
    changes = carry(described(COUNT), after, parse_declared(described(COUNT), after, [], [], []))
    assert not_recomputable(after, changes) == {"m": BEGAN_LATER}


def test_should_rename_the_order_of_a_renamed_store_too():
    topology = Topology("app", version="2")
    topology.table("in", schema="v BIGINT", store=Materialized("m", ttl="1d"))
    old, new = described(WITH_TTL), described(topology)
    changes = carry(old, new, parse_declared(old, new, ["n=m"], [], []))
    assert [(c.was, c.store, c.change_kind) for c in changes] == [
        ("n", "m", StoreChangeKind.COPIED),
        ("n-order", "m-order", StoreChangeKind.COPIED),
    ]


def test_should_remove_the_order_of_a_renamed_store_that_has_no_age_limit_any_more():
    old, new = described(WITH_TTL), Topology("app", version="2")
    new.table("in", schema="v BIGINT", store=Materialized("m"))
    new = described(new)
    renamed, order = carry(old, new, parse_declared(old, new, ["n=m"], [], []))
    assert (renamed.name, renamed.change_kind) == ("n → m", StoreChangeKind.COPIED)
    assert (order.was, order.change_kind) == ("n-order", StoreChangeKind.DROPPED)


def test_should_refuse_an_age_limit_for_the_keys_of_a_renamed_store_too():
    topology = Topology("app", version="2")
    topology.table("in", schema="v BIGINT", store=Materialized("m", ttl="1d"))
    old, new = described(TABLE), described(topology)
    order = carry(old, new, parse_declared(old, new, ["n=m"], [], []))[1]
    assert (order.store, order.change_kind) == ("m-order", StoreChangeKind.REFUSED)
    assert "the keys that n holds have no age" in order.why
    assert "--drop n in place of its --rename" in order.remedy


def purchases(version, bought, ordered="purchase-order"):
    """Two aggregates, of which one has the name of the other's order without being one."""
    topology = Topology("app", version=version)
    grouped = topology.stream("in", schema=SCHEMA, key="id").group_by_key()
    grouped.aggregate(store=bought, n="count(*)")
    grouped.aggregate(store=ordered, n="count(*)")
    return topology


def test_should_keep_a_store_that_only_has_the_name_of_another_ones_order():
    old, new = described(purchases("1", "purchase")), described(purchases("2", "purchase"))
    changes = carry(old, new, parse_declared(old, new, [], ["purchase"], []))
    assert {c.was: c.change_kind for c in changes} == {
        "purchase": StoreChangeKind.DROPPED,
        "purchase-order": StoreChangeKind.KEPT,
    }


def test_should_not_rename_a_store_that_only_has_the_name_of_another_ones_order():
    old, new = described(purchases("1", "purchase")), described(purchases("2", "sale", "sale-order"))
    changes = carry(old, new, parse_declared(old, new, ["purchase=sale"], [], []))
    assert [(c.was, c.store, c.change_kind) for c in changes] == [
        ("purchase", "sale", StoreChangeKind.COPIED),
        ("", "sale-order", StoreChangeKind.NEW),
        ("purchase-order", "", StoreChangeKind.REFUSED),
    ]


@pytest.mark.parametrize("topology", [COUNT, TWO, WINDOWED, TABLE, WITH_TTL], ids=lambda t: str(t.plan().stores[0]))
def test_should_read_a_description_as_it_was_written(topology):
    written = described(topology)
    assert Description.from_bytes(written.to_bytes()) == written
    assert [s.name for s in written.skeleton().stores] == [s.name for s in topology.plan().stores]


def grouped(version, *columns):
    """Counts the rows of a stream that has these columns when it is keyed by city."""
    topology = Topology("app", version=version)
    stream = topology.stream("in", schema=SCHEMA, key="id").select(*columns)
    stream.group_by("city", name="by-city").aggregate(store="n", n="count(*)")
    return topology.plan()


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        (["city"], ["city", "v"], ["v"]),
        (["city", "v"], ["city"], []),
        (["city", "v"], ["v", "city"], []),
        (["city", "v"], ["city", "CAST(v AS STRING) AS v"], ["v"]),
    ],
)
def test_should_find_the_columns_that_records_between_sub_topologies_lack(before, after, new):
    old, other = (describe_state(grouped(n, *columns), {}) for n, columns in (("1", before), ("2", after)))
    assert new_columns(Description.from_bytes(old.to_bytes()), other, "app-by-city-repartition") == new


def test_should_find_all_columns_when_the_description_has_none():
    body = json.loads(describe_state(grouped("1", "city"), {}).to_bytes())
    del body["columns"]
    old = Description.from_bytes(json.dumps(body).encode())
    assert new_columns(old, describe_state(grouped("2", "city"), {}), "app-by-city-repartition") == ["city"]


def people(version, name="firstName"):
    """A count of records that have a nested field of that name."""
    topology = Topology("app", version=version)
    stream = topology.stream("in", schema=f"id STRING, who STRUCT<{name}: STRING, pets: ARRAY<STRUCT<{name}: INT>>>")
    stream.select("who", "id").group_by("id", "by-id").count(store="n").to("out")
    return topology.plan()


def test_should_start_without_an_upgrade_when_a_nested_field_was_recorded_in_lower_case():
    plan = people("1")
    recorded = describe_state(plan, {}).to_bytes()
    old = Description.from_bytes(recorded.replace(b"firstName", b"firstname"))
    assert old.columns["app-by-id-repartition"] != describe_state(plan, {}).columns["app-by-id-repartition"]
    assert resolved(plan, old, {}) == plan
    assert new_columns(old, describe_state(people("2"), {}), "app-by-id-repartition") == []


def test_should_notice_another_nested_field_name():
    for before, after in (("firstName", "firstname"), ("firstName", "lastName"), ("firstname", "lastname")):
        old, new = describe_state(people("1", before), {}), describe_state(people("2", after), {})
        assert new_columns(old, new, "app-by-id-repartition") == ["who"]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (["city"], ["city", "v"], "it reads v from app-by-city-repartition"),
        (["city", "v"], ["city", "CAST(v AS STRING) AS v"], "it reads v from app-by-city-repartition"),
        (["city", "v"], ["city"], None),
        (["city", "v"], ["v", "city"], None),
    ],
)
def test_should_start_without_an_upgrade_only_when_its_own_records_have_all_columns(before, after, says):
    old, plan = describe_state(grouped("1", *before), {}), grouped("1", *after)
    if says is None:
        assert resolved(plan, old, {}) == plan
        return
    with pytest.raises(StartRefused, match=f"{says}.*upgrade plan NAME"):
        resolved(plan, old, {})
    # The first versions of Tidemark did not record the columns.
    assert resolved(plan, replace(old, columns={}), {}) == plan


def test_should_require_all_columns_of_a_source_only_when_it_is_routed():
    found, wider = described(COUNT), Topology("app")
    wider.stream("in", schema=f"{SCHEMA}, w BIGINT", key="id").group_by_key().aggregate(store="n", n="count(*)")
    assert resolved(wider.plan(), found, {}) == wider.plan()
    with pytest.raises(StartRefused, match="it reads w from app-source-in-1-repartition"):
        resolved(wider.plan(), replace(found, routing=1), {})
    # The first versions of Tidemark did not record the columns of the user's topics.
    assert new_columns(replace(found, routing=1, columns={}), described(wider), "in") == []


def numbered(version, key_serde, key=None):
    """A count in the store `n` by the keys of the topic, or by a column."""
    topology = Topology("app", version=version)
    stream = topology.stream("in", schema=SCHEMA, key_serde=key_serde)
    stream.repartition(key, name="by-key").group_by_key().count(store="n")
    return topology


def joined(version, *, table_first):
    """A stream that is joined with a table and another stream; the order of their lines differs."""
    topology = Topology("app", version=version)
    rows = topology.stream("in", schema=SCHEMA, key="id").select("v", "id AS own")
    declared = {
        "table": lambda: topology.table("wards", schema="id STRING, ward STRING", store="wards"),
        "stream": lambda: topology.stream("other", schema="cid STRING, w BIGINT", key="cid"),
    }
    made = {name: declared[name]() for name in sorted(declared, reverse=table_first)}
    rows.left_join(made["table"]).join(made["stream"], within="5m", name="met").to("out")
    return topology


def test_should_keep_all_stores_when_the_lines_of_a_module_change_places():
    old, new = described(joined("1", table_first=True)), described(joined("2", table_first=False))
    assert old.stores["wards"].key != new.stores["wards"].key
    assert obstacles(old, new) == []
    assert {c.change_kind for c in carry(old, new, parse_declared(old, new, [], [], []))} == {StoreChangeKind.KEPT}


def dealt(version, bids="buyer", asks="seller", *, asks_first=False):
    """Two streams that are joined after each was given a key of its own."""
    topology = Topology("app", version=version)
    declared = {
        "bids": lambda: topology.stream("bids", schema="buyer STRING, seller STRING").repartition(bids, "bids"),
        "asks": lambda: topology.stream("asks", schema="buyer STRING, seller STRING").repartition(asks, "asks"),
    }
    made = {name: declared[name]() for name in sorted(declared, reverse=not asks_first)}
    theirs = made["asks"].select("seller AS theirs")
    made["bids"].select("buyer AS own").join(theirs, within="5m", name="met").to("out")
    return topology


@pytest.mark.parametrize(
    ("new", "change_kind"),
    [
        (dealt("2"), StoreChangeKind.KEPT),
        (dealt("2", asks_first=True), StoreChangeKind.KEPT),
        (dealt("2", "seller", "buyer"), StoreChangeKind.REFUSED),
        (dealt("2", "seller", "buyer", asks_first=True), StoreChangeKind.REFUSED),
        (dealt("2", "seller"), StoreChangeKind.REFUSED),
    ],
)
def test_should_keep_the_stores_of_a_join_only_with_the_same_key_for_each_source(new, change_kind):
    old, new = described(dealt("1")), described(new)
    changes = carry(old, new, parse_declared(old, new, [], [], []))
    assert {change.change_kind for change in changes} == {change_kind}


def test_should_return_the_keys_without_their_sources_when_some_sources_have_the_same():
    shared = described(dealt("1", "buyer", "buyer"))
    assert {shared.keys_of(store) for store in shared.stores} == {("buyer",)}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("id, _key", ("id", "_key")),
        ("concat(a, b), c", ("concat(a, b)", "c")),
        ("f(a, d), g(c, b)", ("f(a, d)", "g(c, b)")),
        ("m['(, '], id", ("m['(, ']", "id")),
        ("`a(, b`, id", ("`a(, b`", "id")),
        ("_key, read as long, id", ("_key, read as long", "id")),
        ("_key, read as long, x || _key, read as bytes", ("_key, read as long", "x || _key, read as bytes")),
    ],
)
def test_should_find_the_keys_of_several_sources(text, keys):
    assert keys_in(text) == keys


def test_should_notice_that_keys_are_read_in_another_form():
    counts = {"in": 2}
    old, new = (describe_state(numbered(str(n), serde).plan(), counts) for n, serde in ((1, "long"), (2, "bytes")))
    assert old.stores["n"].key == "_key, read as long"
    (change,) = carry(old, new, parse_declared(old, new, [], [], []))
    assert change.change_kind is StoreChangeKind.REFUSED
    assert change.why == "its keys were _key, read as long, now they are _key, read as bytes"
    by_column = [describe_state(numbered(str(n), s, "id").plan(), counts) for n, s in ((1, "long"), (2, "string"))]
    assert [each.stores["n"].key for each in by_column] == ["id", "id"]

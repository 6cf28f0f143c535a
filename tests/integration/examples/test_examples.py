"""Golden tests of the three examples, on the test driver: the production plan and task loop, no broker."""

from __future__ import annotations

import pytest

from tidemark.topology_loader import load

pytestmark = pytest.mark.spark

MINUTE = 60_000
T0 = 1_700_000_040_000  # a whole minute
HOUR, DAY = 3_600_000, 86_400_000


def values(records):
    return [record.value for record in records]


def beats(driver, patient, at, number, every=400):
    for i in range(number):
        beat = {"patient_id": patient, "beat_ms": at + i * every, "ibi_ms": every, "recording": "r"}
        driver.pipe("pulse-events", beat, key=patient)


def temperature(driver, patient, at, celsius):
    driver.pipe("temperature-events", {"patient_id": patient, "measured_ms": at, "celsius": celsius}, key=patient)


@pytest.fixture
def monitoring(topology_driver):
    return topology_driver(load("patient_monitoring"), start_ms=T0)


def check_in(driver, patient, ward="ward 3"):
    driver.pipe("patients", {"patient_id": patient, "ward": ward}, key=patient, timestamp_ms=T0 - HOUR)
    driver.commit()


def test_should_emit_every_update_and_one_final_result_per_window_in_monitoring(monitoring):
    beats(monitoring, "p1", T0, 10)
    assert values(monitoring.read("pulse-counts"))[-1] == {
        "patient_id": "p1", "window_start": T0, "window_end": T0 + MINUTE, "pulses": 10,
    }  # fmt: skip
    beats(monitoring, "p1", T0 + 10_000, 5)
    assert values(monitoring.read("pulse-counts"))[-1]["pulses"] == 15
    monitoring.advance_stream_time(T0 + MINUTE + 4_999)
    assert monitoring.read("pulse-finals") == []
    monitoring.advance_stream_time(T0 + MINUTE + 5_000)
    assert [v["pulses"] for v in values(monitoring.read("pulse-finals"))] == [15]
    monitoring.advance_stream_time(T0 + HOUR)
    assert monitoring.read("pulse-finals") == []


def test_should_alert_on_high_pulse_with_high_temperature_while_a_patient_is_checked_in(monitoring):
    check_in(monitoring, "p1")
    check_in(monitoring, "p3")
    for patient in ("p1", "p2", "p3"):
        beats(monitoring, patient, T0, 120)
    beats(monitoring, "p4", T0, 99)
    for patient, celsius in (("p1", 38.5), ("p2", 39.0), ("p3", 37.0), ("p4", 40.0)):
        temperature(monitoring, patient, T0 + 30_000, celsius)
    monitoring.commit()
    monitoring.advance_stream_time(T0 + MINUTE + 5_000)
    assert values(monitoring.read("alerts")) == [
        {
            "patient_id": "p1", "window_start": T0, "window_end": T0 + MINUTE, "pulses": 120,
            "measured_ms": T0 + 30_000, "celsius": 38.5, "ward": "ward 3",
        }
    ]  # fmt: skip


def test_should_forget_a_patient_who_checks_out_in_monitoring(monitoring):
    check_in(monitoring, "p1")
    assert monitoring.store("patients") == {"p1": {"patient_id": "p1", "ward": "ward 3"}}
    monitoring.pipe("patients", None, key="p1", timestamp_ms=T0)
    assert monitoring.store("patients") == {}
    beats(monitoring, "p1", T0, 120)
    temperature(monitoring, "p1", T0 + 1_000, 39.0)
    monitoring.commit()
    monitoring.advance_stream_time(T0 + HOUR)
    assert monitoring.read("alerts") == []


def test_should_count_purchases_in_total_and_per_day(topology_driver):
    driver = topology_driver(load("shopping"), start_ms=T0 + 3 * DAY)
    midnight = T0 // DAY * DAY
    for at, customer, cents in ((0, "c1", 500), (1, "c1", 250), (DAY, "c1", 100), (2, "c2", 70), (3, "c2", 0)):
        bought = {"customer_id": customer, "item": "tea", "cents": cents, "bought_ms": midnight + at}
        driver.pipe("purchases", bought, key=customer)
    totals = {v["customer_id"]: (v["purchases"], v["cents"]) for v in values(driver.read("purchase-totals"))}
    assert totals == {"c1": (3, 850), "c2": (1, 70)}
    assert driver.store("purchases-per-day") == {
        ("c1", midnight): {"purchases": 2, "cents": 750},
        ("c1", midnight + DAY): {"purchases": 1, "cents": 100},
        ("c2", midnight): {"purchases": 1, "cents": 70},
    }


def test_should_count_clicks_per_page_after_a_repartition_and_in_sessions_per_user(topology_driver):
    driver = topology_driver(load("clicks"), partitions=3, start_ms=T0 + DAY)
    clicks = ((0, "u1", "home"), (1, "u2", "home"), (10, "u1", "cart"), (45, "u1", "home"))
    for minutes, user, page in clicks:
        driver.pipe("clicks", {"user_id": user, "page": page, "clicked_ms": T0 + minutes * MINUTE}, key=user)
    sessions = driver.store("user-sessions")
    assert sessions == {
        ("u1", T0, T0 + 10 * MINUTE): {"clicks": 2},
        ("u1", T0 + 45 * MINUTE, T0 + 45 * MINUTE): {"clicks": 1},
        ("u2", T0 + MINUTE, T0 + MINUTE): {"clicks": 1},
    }
    pages = driver.store("page-clicks")
    assert len([key for key in pages if key[0] == "home"]) == 11
    assert max(v["clicks"] for (page, _), v in pages.items() if page == "home") == 2


def test_should_merge_sessions_and_write_tombstones_for_their_parts(topology_driver):
    driver = topology_driver(load("clicks"), start_ms=T0 + DAY)
    for minutes in (0, 50):
        driver.pipe("clicks", {"user_id": "u1", "page": "a", "clicked_ms": T0 + minutes * MINUTE}, key="u1")
    driver.commit()
    driver.pipe("clicks", {"user_id": "u1", "page": "a", "clicked_ms": T0 + 25 * MINUTE}, key="u1")
    assert driver.store("user-sessions") == {("u1", T0, T0 + 50 * MINUTE): {"clicks": 3}}

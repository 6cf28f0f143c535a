"""`describe()` is compared as text: it is what people read and diff."""

from __future__ import annotations

from tidemark.topology.builder import Topology
from tidemark.topology.windows import hopping
from tidemark.topology_loader import load

PATIENT_MONITORING = """\
Application: patient-monitoring (version 2, exactly_once, acks=all)
Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [pulse-events]) [Spark]
      --> KSTREAM-AGGREGATE-0000000001
    Processor: KSTREAM-AGGREGATE-0000000001 (stores: [pulse-counts]) [Spark: partial results, task loop: merge and \
store]
      --> KSTREAM-SINK-0000000002, KTABLE-SUPPRESS-0000000003
      <-- KSTREAM-SOURCE-0000000000
    Sink: KSTREAM-SINK-0000000002 (topic: pulse-counts) [task loop]
      <-- KSTREAM-AGGREGATE-0000000001
    Processor: KTABLE-SUPPRESS-0000000003 (stores: [pulse-finals]) [task loop]
      --> KSTREAM-SINK-0000000004, KSTREAM-FILTER-0000000005
      <-- KSTREAM-AGGREGATE-0000000001
    Sink: KSTREAM-SINK-0000000004 (topic: pulse-finals) [task loop]
      <-- KTABLE-SUPPRESS-0000000003
    Processor: KSTREAM-FILTER-0000000005 (stores: []) [task loop]
      --> KSTREAM-JOIN-0000000010
      <-- KTABLE-SUPPRESS-0000000003
    Source: KSTREAM-SOURCE-0000000006 (topics: [temperature-events]) [Spark]
      --> KSTREAM-FILTER-0000000007
    Processor: KSTREAM-FILTER-0000000007 (stores: []) [Spark]
      --> KSTREAM-JOIN-0000000010
      <-- KSTREAM-SOURCE-0000000006
    Source: KSTREAM-SOURCE-0000000008 (topics: [patients]) [Spark]
      --> KTABLE-SOURCE-0000000009
    Processor: KTABLE-SOURCE-0000000009 (stores: [patients]) [task loop]
      --> KSTREAM-JOIN-0000000011
      <-- KSTREAM-SOURCE-0000000008
    Processor: KSTREAM-JOIN-0000000010 (stores: [high-pulse-and-temperature-this-store, \
high-pulse-and-temperature-other-store]) [task loop]
      --> KSTREAM-JOIN-0000000011
      <-- KSTREAM-FILTER-0000000005, KSTREAM-FILTER-0000000007
    Processor: KSTREAM-JOIN-0000000011 (stores: [patients]) [task loop]
      --> KSTREAM-SINK-0000000012
      <-- KSTREAM-JOIN-0000000010, KTABLE-SOURCE-0000000009
    Sink: KSTREAM-SINK-0000000012 (topic: alerts) [task loop]
      <-- KSTREAM-JOIN-0000000011

Stores:
   pulse-counts: window, RocksDB
      windows    tumbling 1m, grace 5s
      retention  6h, in segments of 3h
      changelog  patient-monitoring-pulse-counts-changelog
      by         patient_id
      pulses     count(*), LONG
   pulse-finals: key-value, RocksDB
      retention  for ever
      changelog  patient-monitoring-pulse-finals-changelog
      columns    patient_id STRING, window_start BIGINT, window_end BIGINT, pulses BIGINT
   patients: key-value, RocksDB
      retention  for ever
      changelog  patient-monitoring-patients-changelog
      columns    patient_id STRING, ward STRING
   high-pulse-and-temperature-this-store: window, RocksDB
      retention  130s, in segments of 65s
      changelog  patient-monitoring-high-pulse-and-temperature-this-store-changelog
      columns    patient_id STRING, window_start BIGINT, window_end BIGINT, pulses BIGINT
   high-pulse-and-temperature-other-store: window, RocksDB
      retention  130s, in segments of 65s
      changelog  patient-monitoring-high-pulse-and-temperature-other-store-changelog
      columns    patient_id STRING, measured_ms BIGINT, celsius DOUBLE"""

BRANCHES = """\
Application: app (version 2, exactly_once, acks=all)
Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [beats]) [Spark]
      --> KSTREAM-FILTER-0000000001, KSTREAM-SINK-0000000006
    Processor: KSTREAM-FILTER-0000000001 (stores: []) [Spark]
      --> KSTREAM-AGGREGATE-0000000002, KSTREAM-AGGREGATE-0000000004
      <-- KSTREAM-SOURCE-0000000000
    Processor: KSTREAM-AGGREGATE-0000000002 (stores: [total]) [Spark: partial results, task loop: merge and store]
      --> KSTREAM-SINK-0000000003
      <-- KSTREAM-FILTER-0000000001
    Sink: KSTREAM-SINK-0000000003 (topic: totals) [task loop]
      <-- KSTREAM-AGGREGATE-0000000002
    Processor: KSTREAM-AGGREGATE-0000000004 (stores: [minutes]) [Spark: partial results, task loop: merge and store]
      --> none
      <-- KSTREAM-FILTER-0000000001
    Sink: KSTREAM-SINK-0000000006 (topic: copy) [task loop]
      <-- KSTREAM-SOURCE-0000000000

   Sub-topology: 1
    Source: KSTREAM-SOURCE-0000000007 (topics: [clicks]) [Spark]
      --> KSTREAM-SINK-0000000008
    Sink: KSTREAM-SINK-0000000008 (topic: pages) [task loop]
      <-- KSTREAM-SOURCE-0000000007

Stores:
   total: key-value, RocksDB
      retention  for ever
      changelog  app-total-changelog
      by         key
      n          sum(CAST(n AS BIGINT)), LONG
   minutes: window, RocksDB
      windows    hopping 1m every 10s, grace 0s
      retention  1d, in segments of 12h
      changelog  app-minutes-changelog
      by         key
      mean       mean(CAST(n AS DOUBLE)), DOUBLE"""


def test_should_describe_the_example_as_kafka_streams_does() -> None:
    assert load("patient_monitoring").describe() == PATIENT_MONITORING


def test_should_connect_pipelines_and_subtopologies() -> None:
    topology = Topology("app", version="2")
    beats = topology.stream("beats", schema="n INT")
    kept = beats.filter("n > 0")
    kept.group_by_key().sum("n", name="n", store="total").to("totals")
    kept.group_by_key().windowed_by(hopping("60s", "10s")).mean("n", store="minutes")
    topology._draft.next_index += 1
    beats.to("copy")
    topology.stream("clicks", schema="page STRING").to("pages")
    assert topology.describe() == BRANCHES

"""Makes the broker of a run and its topics, and fills the source topic before anything is measured."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.case import PARTITIONS, QUIET, Block, Case, Program
from bench.errors import BenchFailed
from bench.events import blocks
from tidemark.devstack.broker import EmbeddedBroker
from tidemark.kafka import jars
from tidemark.settings import Settings

_MAX_QUEUED = 400_000
_TIMEOUT_S = 60.0
_BROKER_HEAP = "1g"
# Kafka's default. With the embedded broker's 0, the first thread of Kafka Streams gets every task and then gives half of them
# to the second thread.
_BROKER = {"group.initial.rebalance.delay.ms": "3000"}


def new_broker(folder: Path, settings: Settings) -> EmbeddedBroker:
    """Return the broker of a run, whose data lies in `folder`. A `with` block starts and stops it."""
    return EmbeddedBroker(folder, jars.ensure("kafka", settings), overrides=_BROKER, heap=_BROKER_HEAP)


def create_topics(bootstrap: str, program: Program, *more: str) -> None:
    """Create the sources, the sink and `more`. Each side creates its other topics itself."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    topics = [NewTopic(name, PARTITIONS, 1) for name in (*program.sources, program.sink, *more)]
    for created in admin.create_topics(topics, request_timeout=_TIMEOUT_S).values():
        created.result(_TIMEOUT_S)


def produce(bootstrap: str, case: Case, start_ms: int, begin: int = 0) -> None:
    """Write the events of `case` from number `begin` on, those of each key in order. Blocks until the broker has them.

    Raises `BenchFailed` if the topics then hold another number of records.
    """
    producer = input_producer(bootstrap)
    for block in blocks(case, start_ms, begin):
        queue(producer, block)
    producer.flush(_TIMEOUT_S)
    sources = case.program.sources
    written = sum(offset for topic in sources for offset in end_offsets(bootstrap, topic))
    if written != case.events:
        raise BenchFailed(f"{' and '.join(sources)} hold {written} records after producing {case.events}")


def input_producer(bootstrap: str) -> Producer:
    """Return a producer of events, which puts each key where Java clients put it."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            **QUIET,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 2 * _MAX_QUEUED,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )


def queue(producer: Producer, block: Block) -> None:
    """Queue the events of a block. Waits while too many are queued. Raises `BenchFailed`."""
    messages = [{"key": key, "value": value} for key, value in zip(block.keys, block.values, strict=True)]
    while len(producer) > _MAX_QUEUED:
        producer.poll(0.05)
    queued = producer.produce_batch(block.topic, messages)
    if queued != len(messages):
        raise BenchFailed(f"only {queued} of {len(messages)} events were queued for {block.topic}")


def end_offsets(bootstrap: str, topic: str) -> list[int]:
    """Return the end offset of each partition of `topic`, open transactions and transaction markers included."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench-offsets", "isolation.level": "read_uncommitted", **QUIET}
    )
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)[1]
            for partition in range(PARTITIONS)
        ]
    finally:
        consumer.close()

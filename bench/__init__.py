"""Benchmarks against Kafka Streams. Not shipped: `python bench/run.py --help`."""

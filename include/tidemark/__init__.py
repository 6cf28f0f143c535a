"""Tidemark: Kafka-Streams-grade stateful streams on Spark, operated from Airflow."""

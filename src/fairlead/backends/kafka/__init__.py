"""Adapters on Kafka."""

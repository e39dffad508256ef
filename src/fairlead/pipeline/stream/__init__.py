"""Finished attempts through Kafka: a relay sends them from the store, a stream brings them into the
lake."""

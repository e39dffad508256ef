"""Partitions, shards and the offsets that may be committed."""

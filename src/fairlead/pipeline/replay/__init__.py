"""Replays of the recorded history on Spark."""

"""Slots needed next week: a forecast of the arrivals, and a queueing formula. Pure."""

"""Slots needed next week: rates by hour of the week, a forecast, and a queueing formula. All
modules except `rates` are pure."""

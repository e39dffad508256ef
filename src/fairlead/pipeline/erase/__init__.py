"""Erasing a key: all its rows, all its mentions in free text, and all files that still contain
either."""

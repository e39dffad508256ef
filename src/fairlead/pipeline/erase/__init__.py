"""Erasing a key: every row of it, every mention of it in free text, and every file that still has
either."""

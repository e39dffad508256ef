"""Report: the tables of a lake over a period, on one self-contained page."""

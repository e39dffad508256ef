"""Control laws: weights and limits from what was measured, behind guard rails."""

"""Control laws: weights and limits from measurements, behind guard rails."""

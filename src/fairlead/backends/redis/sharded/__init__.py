"""Steps, scripts and clients of the shuffle-sharded queue on Redis streams."""

"""Fairness experiments without a database: the real core, a list as the store, time counted in
polls."""

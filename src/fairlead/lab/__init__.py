"""Experiments on a virtual clock or on replayed work: simulate, replay, policies, demo."""

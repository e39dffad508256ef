"""Weights and limits from recorded use: `control` and `limit_control` compute them, `guard_rails`
bounds them, `canary` judges a published version, and `gold` and `contracts` read the input."""

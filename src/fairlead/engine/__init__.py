"""The engine of a node: it receives triggers, acquires slots, and claims, runs and completes tasks.
The engine imports no adapter."""

"""The contracts of adapters: one file each, one contract test suite each."""

"""The contracts that adapters keep: one file each, one contract test suite each."""

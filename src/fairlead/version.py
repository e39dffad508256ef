"""The version of this package, which workers record in the store."""

VERSION = "0.1.0"

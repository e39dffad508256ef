"""The way of a submit: options checked, rows encoded, written, announced."""

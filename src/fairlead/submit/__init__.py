"""The submit of tasks: check options, encode rows, write them, announce them."""

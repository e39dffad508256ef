"""Several worker processes under one supervisor: start, watch, restart, replace and drain them."""

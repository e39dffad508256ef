"""Level lanes: a fair backlog beyond memory, in the store that `backlog=` names."""

"""Silver: tasks, service and backlog, computed from sound attempts only."""

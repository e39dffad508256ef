"""Silver: what the attempts say about tasks, service and backlog, each row made from sound attempts
only."""

"""Commands of operators: look at tasks, queues and policies, and change them."""

"""Commands for operators: show tasks, queues and policies, and change them."""

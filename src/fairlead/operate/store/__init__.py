"""Tables of the work of people, in the database of a task store."""

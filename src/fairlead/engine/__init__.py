"""What runs on a node: triggers come in, slots are booked, tasks claimed, run and completed. No
adapter is imported here."""

"""What runs on a node: triggers come in, slots are booked, tasks grabbed, run and completed. No
adapter is imported here."""

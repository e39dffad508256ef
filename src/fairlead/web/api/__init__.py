"""The JSON API of the console, under `/api/v1`."""

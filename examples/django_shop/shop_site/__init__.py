"""The site of the shop."""

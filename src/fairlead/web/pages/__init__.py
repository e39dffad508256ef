"""Screens of the console, one module each: `routes()`, and `NAVIGATION` for the menu."""

"""Where Fairlead meets other libraries. Each module needs its own extra."""

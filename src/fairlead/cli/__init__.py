from fairlead.cli.main import main

__all__ = ["main"]

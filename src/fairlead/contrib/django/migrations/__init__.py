"""Django migrations, one for each of Fairlead's own, whose SQL files they run."""

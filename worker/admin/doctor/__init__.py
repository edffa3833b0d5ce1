"""`pcaplake doctor`: checks of a lake or a fleet, and the repairs that they offer."""

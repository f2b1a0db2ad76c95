"""Memory Intelligence Agent: a deep-research agent of three roles that gets better while it works."""

__version__ = "0.1.0"

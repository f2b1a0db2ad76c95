"""Baselines: each is one file that plays a role of the loop in another way."""

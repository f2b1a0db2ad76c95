"""Rewards: a finished episode to named parts, exactly (paper section 4)."""

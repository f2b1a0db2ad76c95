"""The run folder: what was done, by which settings, prompts, data and code."""

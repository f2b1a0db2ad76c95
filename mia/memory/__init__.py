"""The Memory Manager: what is kept of episodes, and what is shown again for a new question."""

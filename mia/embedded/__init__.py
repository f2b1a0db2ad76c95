"""The one-machine stack: weights for a small model, its server, and the supervision of processes."""

"""The command line: `mia ...`, one module per group of commands."""

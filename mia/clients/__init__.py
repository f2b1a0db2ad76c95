"""The roles from afar: language models, search, memory, planner and executor services over HTTP."""

"""The roles from afar: language models, search and, later, memory and executor services over HTTP."""

"""The world-facts generator: sources, facts, passages, chains, phrasings, questions, splits, files."""

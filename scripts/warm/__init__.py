"""The warm start: supervised traces from the training questions, and the adapters that learn from them."""

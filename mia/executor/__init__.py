"""The Executor: carries a plan out in a ReAct loop over tools, within budgets."""

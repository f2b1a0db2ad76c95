"""The Planner: plans, reflects on what came of it, and revises the plan at most once."""

"""The HTTP services of the agent: one router each, and a route is a request in, one core call, a response out."""

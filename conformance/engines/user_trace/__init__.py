"""The engines of `conformance check`: they run a function of a user's file."""

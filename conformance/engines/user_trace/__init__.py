"""The engines of `conformance check`, which run a function of a user's file."""

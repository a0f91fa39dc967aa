"""Scenarios of the sample."""

"""Decide whether a run may pass."""

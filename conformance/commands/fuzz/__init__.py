"""Fuzzing: run random programs on every column, and minimise those that differ."""

"""Fuzzing: programs that nobody wrote, run on every column, made small where they differ."""

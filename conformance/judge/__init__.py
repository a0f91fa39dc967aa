"""Judging: one cell (`cell`), stored runs (`runs`), and known.yaml (`expectations`)."""

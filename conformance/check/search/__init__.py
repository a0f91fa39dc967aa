"""Edits of a user's file that were run: proposed from its syntax tree, tried, and confirmed."""

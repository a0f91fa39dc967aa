"""Processes: starting them, ending them with all their children, and their temporary files."""

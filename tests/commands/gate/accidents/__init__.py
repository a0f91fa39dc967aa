"""Scenarios that fail once, always, or only after another one."""

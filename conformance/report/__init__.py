"""Presentation of a run: the page, the terminal, tables and the published schema.

Everything here starts from `records.Results`; nothing is judged again.
"""

"""Blocks that do what no block should, with the reference of a correct read.

NAME_after follows NAME in its column, and must be as if that had not been.
"""

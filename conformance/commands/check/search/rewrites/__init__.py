"""The rewrites that a search tries, each a short function."""

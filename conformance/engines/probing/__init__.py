"""Measurements of a freshly loaded engine, and observations of it without nnsight."""

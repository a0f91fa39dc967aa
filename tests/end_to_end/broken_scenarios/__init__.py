"""Scenarios whose trace does something else than their reference: each must be found out."""

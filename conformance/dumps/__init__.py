"""Activations that another tool recorded: `conformance check --dump`."""

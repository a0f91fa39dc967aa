"""Check activations that another tool recorded: `conformance check --dump`."""

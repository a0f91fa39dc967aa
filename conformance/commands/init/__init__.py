"""`conformance init`."""

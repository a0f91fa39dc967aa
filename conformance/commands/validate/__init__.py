"""`conformance validate`."""

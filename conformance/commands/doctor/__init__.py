"""`conformance doctor`."""

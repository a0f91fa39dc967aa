"""What is asked of an engine when it has loaded, and seen beside its traces: without nnsight."""

"""One behaviour a file: its meaning, its cases, the nnsight trace and plain PyTorch."""

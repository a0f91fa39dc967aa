"""Export one cell of a run as a script to attach to an issue or to debug, or as an issue text.

A script holds the trace, its meaning in plain PyTorch, and the case's data. It calls `rerun`, which
gathers and judges the cell as any run does, so there is no second judge.
"""

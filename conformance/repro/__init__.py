"""One cell of a run as a script, to attach to an issue or to debug, and as a text for upstream.

A script holds the trace, what it means in plain PyTorch, and the case's data. `rerun` is what
it calls: the cell is gathered and judged as in any run, so there is no second judge.
"""

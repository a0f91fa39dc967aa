"""Imports and checks for processes that fork workers: such a process must have only one thread."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress

import psutil


def import_present(names: Iterable[str]) -> None:
    """Import those of these modules that are installed, so that forked workers need not."""
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def require_forkable(package: str) -> None:
    """Raise RuntimeError if the imports started threads or opened a CUDA context.

    A forked child has only the forking thread: a lock held by another thread stays locked for ever.
    A CUDA context cannot be used in a forked child at all.
    """
    import torch

    threads = psutil.Process(os.getpid()).num_threads()
    if threads > 1:
        raise RuntimeError(f"importing {package} left {threads} threads: a fork could hang")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(f"importing {package} opened a CUDA context: a fork could not use it")

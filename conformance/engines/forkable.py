"""A process may fork workers only while nothing runs in it but its one thread."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress

import psutil


def import_present(names: Iterable[str]) -> None:
    """Import these modules, but those that the installed versions have not: workers that are forked
    afterwards need not.
    """
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def require_forkable(package: str) -> None:
    """Raise RuntimeError when the imports started threads or opened a CUDA context.

    A forked child has only the forking thread: a lock that another one held stays locked in
    it for ever, and a CUDA context cannot be used in it at all.
    """
    import torch

    threads = psutil.Process(os.getpid()).num_threads()
    if threads > 1:
        raise RuntimeError(f"importing {package} left {threads} threads: a fork could hang")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(f"importing {package} opened a CUDA context: a fork could not use it")

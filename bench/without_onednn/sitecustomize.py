"""Python imports this first, where its folder is in PYTHONPATH: no product is left to oneDNN.

Neither PyTorch nor vLLM has a variable that says so. Another sitecustomize of the interpreter's is
not imported then.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any


def _torch(module: Any) -> None:
    module._C._set_mkldnn_enabled(False)


def _vllm(module: Any) -> None:
    module._supports_onednn = False


_AFTER = {"torch": _torch, "vllm._custom_ops": _vllm}


class _Changed(Loader):
    """Loads a module as its own loader does, and changes it before anybody sees it."""

    def __init__(self, loader: Loader, name: str) -> None:
        self._loader = loader
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _AFTER[self._name](module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Changed(spec.loader, name)
        return spec


sys.meta_path.insert(0, _Finder())
# Part of the arithmetic, by its name (`conformance.runner.planning.machine`): observations made
# with oneDNN are not taken for ones without.
os.environ["ONEDNN_LEFT_OUT"] = "1"

"""Stub modules that replace engines while scenario files are imported only to be listed.

A scenario's file says `import torch` and uses it inside its functions. Without torch, those
functions never run, but the import must succeed. Installed modules are imported as usual.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: The libraries that traces and references use.
ENGINES = frozenset({"einops", "nnsight", "numpy", "safetensors", "torch", "transformers", "vllm"})


class _Anything:
    """A value that allows every use during an import: attribute, call, base class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # As a decorator it returns the function unchanged.
        return (
            arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not named else self
        )

    def __getitem__(self, _: Any) -> Any:
        return self

    def __or__(self, _: Any) -> Any:
        return self

    __ror__ = __or__

    def __mro_entries__(self, _: tuple[type, ...]) -> tuple[type, ...]:
        return ()


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Finder:
    """An import hook at the end of `sys.meta_path`: it sees only what no other finder found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        known = name.partition(".")[0] in ENGINES
        return ModuleSpec(name, self, is_package=True) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is empty."""


@contextmanager
def for_missing() -> Iterator[None]:
    """Within this context, an engine that is not installed can be imported. Afterwards it is
    missing again; only the files imported meanwhile still hold stubs.
    """
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Module)]:
            del sys.modules[name]

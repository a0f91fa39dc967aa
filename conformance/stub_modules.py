"""Modules that stand in for engines while scenario files are imported only to be listed.

A scenario's file says `import torch` and uses it inside of its functions. Where torch is not
installed nothing runs those functions; the import alone must not fail. Modules that are installed
are imported as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: What a trace or a reference is written with.
ENGINES = frozenset({"einops", "nnsight", "numpy", "safetensors", "torch", "transformers", "vllm"})


class _Anything:
    """Whatever a file does with a name while it is imported: read it, call it, derive from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # As a decorator it leaves the function as it is.
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
    """The last one asked: what any other finds is not its business."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        known = name.partition(".")[0] in ENGINES
        return ModuleSpec(name, self, is_package=True) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


@contextmanager
def for_missing() -> Iterator[None]:
    """While this lasts an engine that is not installed can be imported. Afterwards it is missing
    as before: only the files that were imported meanwhile still hold what stood in for it.
    """
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Module)]:
            del sys.modules[name]

"""A model's tree of modules: the path of its layers, and temporary hooks and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.nn import Module, ModuleList

from conformance.engines import Unreadable


def layer_path(module: Module, layers: int) -> str:
    """Return the dotted path of the one `ModuleList` that is as long as the model has layers.

    The shortest path wins: a list inside of a layer cannot be the list of layers. Raises Unreadable
    if there is none, or several at the same depth.
    """
    lists = {
        name: len(child) for name, child in module.named_modules() if isinstance(child, ModuleList)
    }
    paths = [name for name, length in lists.items() if length == layers]
    depth = min((name.count(".") for name in paths), default=-1)
    nearest = [name for name in paths if name.count(".") == depth]
    if len(nearest) != 1:
        raise Unreadable(f"no single list of {layers} layers; the lists are {lists}")
    return str(nearest[0])


def follow(root: Any, path: str) -> Any:
    """Return the child at a dotted path of an nnsight envoy or a module; of "", the root itself."""
    for name in path.split(".") if path else ():
        root = root[int(name)] if name.isdigit() else getattr(root, name)
    return root


def reaches(root: Any, path: str) -> bool:
    """Return whether `path` exists."""
    try:
        follow(root, path)
    except AttributeError:
        return False
    return True


@contextmanager
def hooked(handles: Iterable[Any]) -> Iterator[None]:
    """Remove these hooks on exit."""
    registered = list(handles)
    try:
        yield
    finally:
        for handle in registered:
            handle.remove()


@contextmanager
def exchanged(values: Mapping[Module, Any], name: str = "forward") -> Iterator[None]:
    """Give each module this forward, or the attribute `name`, and restore its own on exit."""
    originals = {module: getattr(module, name) for module in values}
    for module, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, value in originals.items():
            setattr(module, name, value)

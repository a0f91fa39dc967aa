"""The path of a model's layers, found by structure rather than by a table of names."""

from __future__ import annotations

from typing import Any

from torch.nn import Module, ModuleList

from conformance.engines import Unreadable


def layer_path(module: Module, layers: int) -> str:
    """Return the dotted path of the one `ModuleList` that is as long as the model has layers.

    The shortest path wins: a list inside of a layer cannot be the list of layers. Raises Unreadable
    if there is none, or several at the same depth.
    """
    paths = [
        name
        for name, child in module.named_modules()
        if isinstance(child, ModuleList) and len(child) == layers
    ]
    depth = min((name.count(".") for name in paths), default=-1)
    nearest = [name for name in paths if name.count(".") == depth]
    if len(nearest) != 1:
        lists = {
            name: len(child)
            for name, child in module.named_modules()
            if isinstance(child, ModuleList)
        }
        raise Unreadable(f"no single list of {layers} layers; the lists are {lists}")
    return str(nearest[0])


def follow(root: Any, path: str) -> Any:
    """Return the child at a dotted path of an nnsight envoy or a module."""
    for name in path.split("."):
        root = root[int(name)] if name.isdigit() else getattr(root, name)
    return root

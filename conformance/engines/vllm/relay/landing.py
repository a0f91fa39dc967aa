"""Unpickling of tensors onto the GPU of the receiving process.

A pickled tensor records its GPU, and torch restores it there. With one stage, that is the only GPU
in use. With several stages, what a block captured must move to the GPU of the stage that runs it,
and what it saved must move to the client's GPU. Tensors on the host stay there.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from nnsight.intervention.serialization import CustomCloudUnpickler


class LandingUnpickler(pickle.Unpickler):
    """Restores GPU tensors on this process's GPU, whatever contains them. Tensors are rebuilt from
    their storages, so tensors that shared memory still do.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the named object, except for the function that reads a tensor's storage."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        return super().find_class(module, name)


class BlockUnpickler(LandingUnpickler, CustomCloudUnpickler):  # type: ignore[misc]
    """nnsight's unpickler for a block and what it captured."""


def _storage(data: bytes) -> Any:
    # The data is from a process of this engine or its client, whose code runs here anyway.
    return torch.load(io.BytesIO(data), map_location=_landed, weights_only=False)


def _landed(storage: Any, location: str) -> Any:
    """Return the storage on this process's GPU if it was on a GPU; else None, torch's default."""
    if torch.device(location).type != "cuda":
        return None
    return torch.serialization.default_restore_location(storage, "cuda")  # type: ignore[no-untyped-call]

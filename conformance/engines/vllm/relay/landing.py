"""On which GPU a tensor is that came from another process: on the one that its new process uses.

A pickled tensor says which GPU it was on, and torch puts it there again. With one stage that is the
one that all compute on. With several each has its own: what a block captured must be on that of
whichever stage runs it, and what it saved comes home to the client's, wherever the last stage is.
What was on the host stays there, as with one stage.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from nnsight.intervention.serialization import CustomCloudUnpickler


class LandingUnpickler(pickle.Unpickler):
    """Builds tensors of a GPU on this process's own, in whatever they are held: each is made of its
    storage, so what two names share they share again.
    """

    def find_class(self, module: str, name: str) -> Any:
        """What the stream names, except the one function that reads a tensor's storage."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        return super().find_class(module, name)


class BlockUnpickler(LandingUnpickler, CustomCloudUnpickler):  # type: ignore[misc]
    """nnsight's own, for a block and what it captured."""


def _storage(data: bytes) -> Any:
    # From a process of the same engine or from its client, whose blocks are run here.
    return torch.load(io.BytesIO(data), map_location=_landed, weights_only=False)


def _landed(storage: Any, location: str) -> Any:
    """The storage on this process's GPU if it was on one; else None: as torch would."""
    if torch.device(location).type != "cuda":
        return None
    return torch.serialization.default_restore_location(storage, "cuda")  # type: ignore[no-untyped-call]

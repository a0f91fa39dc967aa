"""Pickles of tensors between processes with different GPUs: what a block captured or saved.

A pickled tensor records its GPU, and torch restores it there. With one stage, that is the only GPU
in use. With several stages, what a block captured must move to the GPU of the stage that runs it,
and what it saved must move to the client's GPU. Tensors on the host stay there.

nnsight pickles what a trace saved, and torch then writes each tensor as a separate file, which
takes as long as a layer. Here the tensors are copied from the device together.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.serialization import CustomCloudUnpickler

from conformance.engines.vllm.relay.record import Packed, pack_tensors, parted, unpack_tensors


class LandingUnpickler(pickle.Unpickler):
    """Restores GPU tensors on this process's GPU, whatever contains them. Tensors are rebuilt from
    their storages, so tensors that shared memory still do.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the named object, except for the function that reads a tensor's storage."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _load_storage
        return super().find_class(module, name)


class BlockUnpickler(LandingUnpickler, CustomCloudUnpickler):  # type: ignore[misc]
    """nnsight's unpickler for a block and what it captured."""


def _load_storage(data: bytes) -> Any:
    # The data is from a process of this engine or its client, whose code runs here anyway.
    return torch.load(io.BytesIO(data), map_location=_land, weights_only=False)


def _land(storage: Any, location: str) -> Any:
    """Return the storage on this process's GPU if it was on a GPU; else None, torch's default."""
    if torch.device(location).type != "cuda":
        return None
    return torch.serialization.default_restore_location(storage, "cuda")  # type: ignore[no-untyped-call]


class _SavedValuePickler(pickle.Pickler):
    """Stores plain tensors outside of the stream, each once."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._indices: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if type(obj) is not torch.Tensor or obj.layout is not torch.strided:
            return None
        if obj.requires_grad or obj.is_quantized or obj.is_meta:
            return None
        if id(obj) not in self._indices:
            self._indices[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return obj.device.type, self._indices[id(obj)]


class _SavedValueUnpickler(LandingUnpickler):
    """Restores each tensor in separate memory on the host or on this process's GPU."""

    def __init__(self, packed: Packed) -> None:
        stream, tensors = unpack_tensors(packed)
        super().__init__(io.BytesIO(stream))
        self._packed = packed
        self._views = {"cpu": tensors}
        self._found: dict[tuple[str, int], torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        device, index = pid
        if device not in self._views:
            body = self._packed.body.to(device)  # one copy for all
            _, self._views[device] = unpack_tensors(self._packed._replace(body=body))
        if pid not in self._found:
            self._found[pid] = self._views[device][index].clone()
        return self._found[pid]


@dataclass(frozen=True)
class _PackedSaves:
    """The packed saves as bytes; unpickling it returns the saved values."""

    whole: bytes

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return unpack_saves, (self.whole,)


def dumps(value: Any) -> bytes:
    """Return `value` pickled, with its tensors concatenated. ``pickle.loads`` restores it."""
    stream = io.BytesIO()
    pickler = _SavedValuePickler(stream)
    pickler.dump(value)
    packed = pack_tensors(pickler.tensors, stream.getvalue())
    return pickle.dumps(_PackedSaves(packed.whole.numpy().tobytes()), pickle.HIGHEST_PROTOCOL)


def unpack_saves(whole: bytes) -> Any:
    """Undo :func:`dumps`."""
    packed = parted(torch.frombuffer(bytearray(whole), dtype=torch.uint8))
    return _SavedValueUnpickler(packed).load()

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
    """Stores plain tensors outside of the stream, each once, by device."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[str, list[torch.Tensor]] = {}
        self._places: dict[int, tuple[str, int]] = {}

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if type(obj) is not torch.Tensor or obj.layout is not torch.strided:
            return None
        if obj.requires_grad or obj.is_quantized or obj.is_meta:
            return None
        if id(obj) not in self._places:
            held = self.tensors.setdefault(str(obj.device), [])
            self._places[id(obj)] = (str(obj.device), len(held))
            held.append(obj)
        return self._places[id(obj)]


class _SavedValueUnpickler(LandingUnpickler):
    def __init__(self, stream: bytes, tensors: dict[str, list[torch.Tensor]]) -> None:
        super().__init__(io.BytesIO(stream))
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        device, index = pid
        held: torch.Tensor = self.tensors[device][index]
        return held


@dataclass(frozen=True)
class _PackedSaves:
    """The stream, and the tensors of each device; unpickling it returns the saved values."""

    stream: bytes
    parts: dict[str, bytes]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return unpack_saves, (self.stream, self.parts)


def dumps(value: Any) -> bytes:
    """Return `value` pickled, with its tensors concatenated. ``pickle.loads`` restores it; each
    tensor gets separate memory on the host or on the GPU of the loading process.
    """
    stream = io.BytesIO()
    pickler = _SavedValuePickler(stream)
    pickler.dump(value)
    parts = {
        device: pack_tensors(tensors).whole.numpy().tobytes()
        for device, tensors in pickler.tensors.items()
    }
    return pickle.dumps(_PackedSaves(stream.getvalue(), parts), pickle.HIGHEST_PROTOCOL)


def unpack_saves(stream: bytes, parts: dict[str, bytes]) -> Any:
    """Undo :func:`dumps`."""
    tensors = {device: _unpack_part(part, device) for device, part in parts.items()}
    return _SavedValueUnpickler(stream, tensors).load()


def _unpack_part(part: bytes, device: str) -> list[torch.Tensor]:
    packed = parted(torch.frombuffer(bytearray(part), dtype=torch.uint8))
    # Without an index: this process's GPU, whichever GPU of the engine it was.
    body = packed.body.to(torch.device(device).type)
    _, tensors = unpack_tensors(Packed(packed.head, body))
    return [tensor.clone() for tensor in tensors]

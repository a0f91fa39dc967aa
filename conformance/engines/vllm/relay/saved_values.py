"""Serialization of what a trace saved: tensors are copied from the device together.

nnsight pickles it, and torch then writes each tensor as a separate file: a fifth of a millisecond
each, as long as a layer takes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch

from conformance.engines.vllm.relay.landing import LandingUnpickler
from conformance.engines.vllm.relay.record import Packed, pack_tensors, parted, unpack_tensors


class _SavedValuePickler(pickle.Pickler):
    """Stores tensors outside of the stream, each once, by device."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[str, list[torch.Tensor]] = {}
        self._places: dict[int, tuple[str, int]] = {}

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if not _plain(obj):
            return None
        if id(obj) not in self._places:
            held = self.tensors.setdefault(str(obj.device), [])
            self._places[id(obj)] = (str(obj.device), len(held))
            held.append(obj)
        return self._places[id(obj)]


def _plain(obj: Any) -> bool:
    return (
        type(obj) is torch.Tensor
        and obj.layout is torch.strided
        and not (obj.requires_grad or obj.is_quantized or obj.is_meta)
    )


class _SavedValueUnpickler(LandingUnpickler):
    def __init__(self, stream: bytes, tensors: dict[str, list[torch.Tensor]]) -> None:
        super().__init__(io.BytesIO(stream))
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        device, index = pid
        held: torch.Tensor = self.tensors[device][index]
        return held


class _Home:
    """Holds packed saves; unpickling it returns the saved values."""

    def __init__(self, stream: bytes, parts: dict[str, bytes]) -> None:
        self.stream = stream
        self.parts = parts

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes, dict[str, bytes]]]:
        return arrived, (self.stream, self.parts)


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
    return pickle.dumps(_Home(stream.getvalue(), parts), pickle.HIGHEST_PROTOCOL)


def arrived(stream: bytes, parts: dict[str, bytes]) -> Any:
    """Undo :func:`dumps`."""
    return _SavedValueUnpickler(
        stream, {at: _tensors(part, at) for at, part in parts.items()}
    ).load()


def _tensors(part: bytes, device: str) -> list[torch.Tensor]:
    packed = parted(torch.frombuffer(bytearray(part), dtype=torch.uint8))
    # Without an index: this process's GPU, whichever GPU of the engine it was.
    body = packed.body.to(torch.device(device).type)
    _, tensors = unpack_tensors(Packed(packed.head, body))
    return [tensor.clone() for tensor in tensors]

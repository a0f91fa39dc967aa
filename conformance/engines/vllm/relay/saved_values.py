"""What a trace saved, on its way home: copied from the device at once, when the request is over.

nnsight pickles it, and torch then writes each tensor as a file of its own: a fifth of a
millisecond each, as much as a layer takes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch

from conformance.engines.vllm.relay.landing import LandingUnpickler
from conformance.engines.vllm.relay.record import Packed, pack_tensors, parted, unpack_tensors


class _Pickler(pickle.Pickler):
    """Keeps tensors out of the stream, each of them once, by the device that they are on."""

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


class _Unpickler(LandingUnpickler):
    def __init__(self, stream: bytes, tensors: dict[str, list[torch.Tensor]]) -> None:
        super().__init__(io.BytesIO(stream))
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        device, index = pid
        held: torch.Tensor = self.tensors[device][index]
        return held


class _Home:
    """Stands for what was saved, and becomes it where it is unpickled."""

    def __init__(self, stream: bytes, parts: dict[str, bytes]) -> None:
        self.stream = stream
        self.parts = parts

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes, dict[str, bytes]]]:
        return arrived, (self.stream, self.parts)


def dumps(value: Any) -> bytes:
    """`value` pickled, its tensors beside each other. Plain ``pickle.loads`` gives it back, each
    tensor with memory of its own, on the host or the GPU of the process that does so.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    parts = {
        device: pack_tensors(tensors).whole.numpy().tobytes()
        for device, tensors in pickler.tensors.items()
    }
    return pickle.dumps(_Home(stream.getvalue(), parts), pickle.HIGHEST_PROTOCOL)


def arrived(stream: bytes, parts: dict[str, bytes]) -> Any:
    """What :func:`dumps` was given."""
    return _Unpickler(stream, {at: _tensors(part, at) for at, part in parts.items()}).load()


def _tensors(part: bytes, device: str) -> list[torch.Tensor]:
    packed = parted(torch.frombuffer(bytearray(part), dtype=torch.uint8))
    # Without a number: this process's GPU, whichever of the engine's it was.
    body = packed.body.to(torch.device(device).type)
    _, tensors = unpack_tensors(Packed(packed.head, body))
    return [tensor.clone() for tensor in tensors]

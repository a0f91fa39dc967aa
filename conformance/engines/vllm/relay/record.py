"""The record of a step that one stage sends to another: the visits in order, and their values.

A visit is a location that the forward or the sampler reached. Its value is sent only if a worker or
a cache took it; otherwise only its name. The names repeat from step to step, so each list of names
is sent once, and later by number.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from nnsight.intervention.source import NO_SKIP

from conformance.engines.structure import map_tensors, tensors_in

#: Location lists remembered per sender; further lists are always sent in full.
SEQUENCES = 1024

_LENGTH = 8
_ALIGNMENT = 64


class Reader(NamedTuple):
    """A request that was served at a visit, by its place in the step's batch, and the digest of
    what it left in its own rows, None if they are unchanged.
    """

    row: int
    digest: int | None


class ServedValue(NamedTuple):
    """The value of a visit that a worker or cache took, before any edit."""

    value: Any
    readers: tuple[Reader, ...]


@dataclass
class Visits:
    """The ordered visits of one stage in one step.

    The first ``boundary`` visits have one row per scheduled token (module locations), the others
    one row per request (logits and sampled ids). ``unsettled`` are visits whose changes are not yet
    determined (see ``changed_values``).
    """

    stage: int
    locations: list[str] = field(default_factory=list)
    boundary: int = 0
    served: dict[int, ServedValue] = field(default_factory=dict)
    unsettled: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RelayMessage:
    """What one stage tells another about one step.

    ``poison`` says why the sender could not run the step; then the other fields are empty.
    ``errors`` maps request ids to the errors that ended the sender's copies of the blocks.
    """

    step: int
    visits: tuple[Visits, ...] = ()
    errors: dict[str, Any] = field(default_factory=dict)
    poison: str | None = None


class Unsendable(NamedTuple):
    """Replaces a value that cannot be pickled; a block that needs it raises with its type."""

    kind: str


class _MessagePickler(pickle.Pickler):
    """Stores tensors outside of the pickle stream, and modules and the skip mark by name."""

    def __init__(self, buffer: io.BytesIO, paths: dict[int, str]) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self.paths = paths

    def persistent_id(self, obj: Any) -> Any:
        if obj is NO_SKIP:
            return ("no-skip", None)
        if isinstance(obj, torch.Tensor):
            self.tensors.append(obj)
            return ("tensor", len(self.tensors) - 1)
        if isinstance(obj, torch.nn.Module):
            return ("module", self.paths.get(id(obj), type(obj).__qualname__))
        return None


class _MessageUnpickler(pickle.Unpickler):
    def __init__(
        self, stream: bytes, tensors: Sequence[torch.Tensor], modules: dict[str, Any]
    ) -> None:
        super().__init__(io.BytesIO(stream))
        self.tensors = tensors
        self.modules = modules

    def persistent_load(self, pid: Any) -> Any:
        kind, name = pid
        if kind == "tensor":
            return self.tensors[name]
        return self.modules.get(name, name) if kind == "module" else NO_SKIP


class Packed(NamedTuple):
    """An object as bytes, in two uint8 tensors [bytes]: its structure, on the host, and its
    tensors, concatenated on their device.
    """

    head: torch.Tensor
    body: torch.Tensor

    @property
    def whole(self) -> torch.Tensor:
        """Both parts in one tensor on the host; :func:`parted` splits it."""
        end = _LENGTH + self.head.numel()
        start = _aligned(end)
        out = torch.zeros(start + self.body.numel(), dtype=torch.uint8)
        out[:_LENGTH] = _as_tensor(self.head.numel().to_bytes(_LENGTH, "little"))
        out[_LENGTH:end] = self.head
        out[start:] = self.body
        return out


def parted(data: torch.Tensor) -> Packed:
    """Split :attr:`Packed.whole` into views of ``data``."""
    end = _LENGTH + int.from_bytes(bytes(data[:_LENGTH].tolist()), "little")
    return Packed(data[_LENGTH:end], data[_aligned(end) :])


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def pack_tensors(tensors: Sequence[torch.Tensor], stream: bytes = b"") -> Packed:
    """Pack a pickle stream and the tensors stored outside of it."""
    head = pickle.dumps((stream, [(t.dtype, tuple(t.shape)) for t in tensors]))
    device = next((t.device for t in tensors if t.is_cuda), torch.device("cpu"))
    raw = [_bytes_of(t.to(device)) for t in tensors]
    starts = [0, *itertools.accumulate(_aligned(t.numel()) for t in raw)]
    body = torch.empty(starts[-1], dtype=torch.uint8, device=device)
    places = [body[at : at + t.numel()] for at, t in zip(starts, raw, strict=False)]
    if places:
        torch._foreach_copy_(places, raw)
    return Packed(_as_tensor(head), body)


def unpack_tensors(packed: Packed) -> tuple[bytes, list[torch.Tensor]]:
    """Return the stream, and the tensors as views of the body."""
    # From another process of the same engine, which runs the client's code anyway.
    stream, shapes = pickle.loads(cast(Any, packed.head.numpy()))  # noqa: S301
    tensors, at = [], 0
    for dtype, shape in shapes:
        size = dtype.itemsize * math.prod(shape)
        tensors.append(packed.body[at : at + size].view(dtype).reshape(shape))
        at += _aligned(size)
    return stream, tensors


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return flat(tensor.detach()).view(torch.uint8)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's elements as a contiguous 1-D tensor of stride 1. A tensor of one element
    is contiguous with any stride, but only stride 1 can be viewed as bytes.
    """
    whole = tensor.contiguous().reshape(-1)
    return whole.as_strided((whole.numel(),), (1,))


def encode(obj: Any, paths: dict[int, str] | None = None) -> Packed:
    """Pack ``obj``. ``paths`` maps a module's ``id`` to its persistent id."""
    stream = io.BytesIO()
    pickler = _MessagePickler(stream, paths or {})
    pickler.dump(obj)
    return pack_tensors(pickler.tensors, stream.getvalue())


def decode(packed: Packed, modules: dict[str, Any] | None = None) -> Any:
    """Undo :func:`encode`; the tensors are views of the body, on its device."""
    return _MessageUnpickler(*unpack_tensors(packed), modules or {}).load()


class LocationNumbers:
    """Numbers for location lists between one sender and one receiver."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._lists: dict[int, list[str]] = {}

    def number(self, locations: list[str]) -> tuple[int, list[str] | None]:
        """Return the list's number and, unless the receiver already has it, the list."""
        key = tuple(locations)
        if key in self._numbers:
            return self._numbers[key], None
        if len(self._numbers) >= SEQUENCES:
            return -1, locations
        self._numbers[key] = number = len(self._numbers)
        return number, locations

    def lookup(self, number: int, locations: list[str] | None) -> list[str]:
        """Return the list with the sender's number."""
        if locations is None:
            return self._lists[number]
        if number >= 0:
            self._lists[number] = locations
        return locations


def pack(message: RelayMessage, names: LocationNumbers, paths: dict[int, str]) -> Packed:
    """Pack a message. A value that cannot be pickled is replaced by its type's name."""
    visits = [(v.stage, *names.number(v.locations), v.boundary, v.served) for v in message.visits]
    try:
        return encode((message.step, visits, message.errors, message.poison), paths)
    except Exception:  # noqa: BLE001 - pickling runs the values' own code
        visits = [(*v[:4], _sendable(v[4], paths)) for v in visits]
        return encode((message.step, visits, message.errors, message.poison), paths)


def _sendable(served: dict[int, ServedValue], paths: dict[int, str]) -> dict[int, ServedValue]:
    """Return ``served`` with values that cannot be pickled replaced by their type's name."""
    result = dict(served)
    for index, entry in served.items():
        try:
            encode(entry, paths)
        except Exception:  # noqa: BLE001 - pickling runs the value's own code
            result[index] = entry._replace(value=Unsendable(type(entry.value).__qualname__))
    return result


def unpack(data: Packed, names: LocationNumbers, modules: dict[str, Any]) -> RelayMessage:
    """Undo :func:`pack`, with the receiver's counterpart of the sender's ``names``."""
    step, packed, errors, poison = decode(data, modules)
    visits = tuple(
        Visits(stage, names.lookup(number, locations), boundary, served)
        for stage, number, locations, boundary, served in packed
    )
    return RelayMessage(step, visits, errors, poison)


def snapshot(value: Any) -> Any:
    """Return a copy that later edits and kernels cannot change."""
    if type(value) is tuple and all(type(item) is torch.Tensor for item in value):
        return tuple(item.clone() for item in value)  # the output of most layers
    return map_tensors(value, torch.Tensor.clone)


def same(before: Any, after: Any) -> bool:
    """Return whether each tensor of ``after`` is bitwise its counterpart in ``before``."""
    left, right = tensors_in(before), tensors_in(after)
    return len(left) == len(right) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(left, right, strict=True)
    )


def digest(value: Any) -> int:
    """Return a checksum of the types, shapes and bytes of the tensors in ``value``."""
    result = 0
    for tensor in tensors_in(value):
        result = zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), result)
        data = _bytes_of(tensor.to("cpu"))
        result = zlib.crc32(cast(Any, data.numpy()), result)
    return result

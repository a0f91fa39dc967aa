"""What one stage tells another about a step: the visits it saw, in order, and their values.

A visit is a location that the forward (or the sampler) reached. Its value travels only if a
worker or a cache took it; the others are names, and the names of a step repeat from step to
step, so each list of names is sent once and afterwards by its number.
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

#: Location lists remembered per sender; beyond it they are sent in full each time.
SEQUENCES = 1024

_LENGTH = 8
_ALIGNMENT = 64


class Reader(NamedTuple):
    """One request that was served at a visit, and what it left there.

    ``row`` is the request's place in the step's batch. ``digest`` covers its own rows after
    the owner's edits and is ``None`` when they were left as they were.
    """

    row: int
    digest: int | None


class Served(NamedTuple):
    """The value of a visit that somebody took, as it was before any edit."""

    value: Any
    readers: tuple[Reader, ...]


@dataclass
class Visits:
    """The ordered visits of one stage in one step.

    The first ``tokens`` of them carry one row per scheduled token (module locations), the
    rest one row per request (logits and sampled ids). ``unsettled`` are those of which it is not
    yet known what the requests left there (see ``changed_values``).
    """

    stage: int
    locations: list[str] = field(default_factory=list)
    tokens: int | None = None
    served: dict[int, Served] = field(default_factory=dict)
    unsettled: dict[int, Any] = field(default_factory=dict)

    def end_tokens(self) -> None:
        """Everything noted from here on has one row per request."""
        self.tokens = len(self.locations)

    @property
    def boundary(self) -> int:
        """The index of the first visit with one row per request."""
        return len(self.locations) if self.tokens is None else self.tokens


@dataclass(frozen=True)
class Message:
    """One step's news from one stage to another.

    ``poison`` says why the sending stage could not run the step; then nothing else is there.
    ``errors`` holds, by request id, what the sender's copies of the blocks died of.
    """

    step: int
    visits: tuple[Visits, ...] = ()
    errors: dict[str, Any] = field(default_factory=dict)
    poison: str | None = None


class Unsendable(NamedTuple):
    """Stands for a value that cannot be pickled; a block that needs it fails by name."""

    kind: str


class _Pickler(pickle.Pickler):
    """Keeps tensors out of the pickle stream and modules and the skip mark by name."""

    def __init__(self, buffer: io.BytesIO, paths: dict[int, str]) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self.paths = paths

    def persistent_id(self, obj: Any) -> Any:
        if obj is NO_SKIP:
            return ("no-skip",)
        if isinstance(obj, torch.Tensor):
            self.tensors.append(obj)
            return ("tensor", len(self.tensors) - 1)
        if isinstance(obj, torch.nn.Module):
            return ("module", self.paths.get(id(obj), type(obj).__qualname__))
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, buffer: io.BytesIO, tensors: Sequence[torch.Tensor], modules: dict[str, Any]
    ) -> None:
        super().__init__(buffer)
        self.tensors = tensors
        self.modules = modules

    def persistent_load(self, pid: Any) -> Any:
        kind = pid[0]
        if kind == "tensor":
            return self.tensors[pid[1]]
        if kind == "module":
            return self.modules.get(pid[1], pid[1])
        return NO_SKIP


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Packed(NamedTuple):
    """An object as bytes, uint8 [bytes] twice: what it is made of, on the host, and its tensors,
    one after the other on the device that they are on.
    """

    head: torch.Tensor
    body: torch.Tensor

    @property
    def whole(self) -> torch.Tensor:
        """Both in one, on the host; :func:`parted` undoes it."""
        start = _aligned(_LENGTH + self.head.numel())
        out = torch.zeros(start + self.body.numel(), dtype=torch.uint8)
        out[:_LENGTH] = _number(self.head.numel())
        out[_LENGTH : _LENGTH + self.head.numel()] = self.head
        out[start:] = self.body
        return out


def _number(value: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(value.to_bytes(_LENGTH, "little")), dtype=torch.uint8)


def parted(data: torch.Tensor) -> Packed:
    """What :attr:`Packed.whole` was made of: views into ``data``."""
    size = int.from_bytes(bytes(data[:_LENGTH].tolist()), "little")
    return Packed(data[_LENGTH : _LENGTH + size], data[_aligned(_LENGTH + size) :])


def pack_tensors(tensors: Sequence[torch.Tensor], stream: bytes = b"") -> Packed:
    """A pickle stream and the tensors that were kept out of it."""
    shapes = pickle.dumps([(t.dtype, tuple(t.shape)) for t in tensors])
    head = len(stream).to_bytes(_LENGTH, "little") + stream + shapes
    device = next((t.device for t in tensors if t.is_cuda), torch.device("cpu"))
    raw = [_bytes_of(t.to(device)) for t in tensors]
    starts = [0, *itertools.accumulate(_aligned(t.numel()) for t in raw)]
    body = torch.empty(starts[-1], dtype=torch.uint8, device=device)
    places = [body[at : at + t.numel()] for at, t in zip(starts, raw, strict=False)]
    if places:
        torch._foreach_copy_(places, raw)
    return Packed(torch.frombuffer(bytearray(head), dtype=torch.uint8), body)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return flat(tensor.detach()).view(torch.uint8)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers side by side. One number alone counts as contiguous whatever its stride is, and
    with another than one it could not be viewed as bytes.
    """
    whole = tensor.contiguous().reshape(-1)
    return whole.as_strided((whole.numel(),), (1,))


def unpack_tensors(packed: Packed) -> tuple[io.BytesIO, list[torch.Tensor]]:
    """The stream, and the tensors as views into the body."""
    view = memoryview(cast(Any, packed.head.numpy()))
    end = _LENGTH + int.from_bytes(view[:_LENGTH], "little")
    tensors, at = [], 0
    # From another process of the same engine, which already runs what the client sends.
    for dtype, shape in pickle.loads(view[end:]):  # noqa: S301
        size = dtype.itemsize * math.prod(shape)
        tensors.append(packed.body[at : at + size].view(dtype).reshape(shape))
        at += _aligned(size)
    return io.BytesIO(view[_LENGTH:end]), tensors


def encode(obj: Any, paths: dict[int, str] | None = None) -> Packed:
    """``obj`` as bytes. ``paths`` gives the persistent id of a module by its ``id``."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, paths or {})
    pickler.dump(obj)
    return pack_tensors(pickler.tensors, stream.getvalue())


def decode(packed: Packed, modules: dict[str, Any] | None = None) -> Any:
    """What :func:`encode` was given; the tensors are views into the body, where that is."""
    stream, tensors = unpack_tensors(packed)
    return _Unpickler(stream, tensors, modules or {}).load()


class Names:
    """Numbers for location lists between one sender and one receiver."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._lists: dict[int, list[str]] = {}

    def number(self, locations: list[str]) -> tuple[int, list[str] | None]:
        """The list's number and, unless the receiver has it already, the list."""
        key = tuple(locations)
        known = self._numbers.get(key)
        if known is not None:
            return known, None
        if len(self._numbers) >= SEQUENCES:
            return -1, locations
        self._numbers[key] = number = len(self._numbers)
        return number, locations

    def lookup(self, number: int, locations: list[str] | None) -> list[str]:
        """The list that the sender numbered so."""
        if locations is None:
            return self._lists[number]
        if number >= 0:
            self._lists[number] = locations
        return locations


def _sendable(served: dict[int, Served], paths: dict[int, str]) -> dict[int, Served]:
    """``served`` with each value that cannot be pickled replaced by its type's name."""
    result = {}
    for index, entry in served.items():
        try:
            _Pickler(io.BytesIO(), paths).dump(entry)
        except Exception:  # noqa: BLE001 - pickling runs the value's own code
            result[index] = entry._replace(value=Unsendable(type(entry.value).__qualname__))
        else:
            result[index] = entry
    return result


def pack(message: Message, names: Names, paths: dict[int, str]) -> Packed:
    """A message as bytes, its location lists by number where the receiver knows them."""
    visits = [(v.stage, *names.number(v.locations), v.boundary, v.served) for v in message.visits]
    try:
        return encode((message.step, visits, message.errors, message.poison), paths)
    except Exception:  # noqa: BLE001 - pickling runs the values' own code
        visits = [(*v[:4], _sendable(v[4], paths)) for v in visits]
        return encode((message.step, visits, message.errors, message.poison), paths)


def unpack(data: Packed, names: Names, modules: dict[str, Any]) -> Message:
    """The message that was packed with the sender's counterpart of ``names``."""
    step, packed, errors, poison = decode(data, modules)
    visits = tuple(
        Visits(stage, names.lookup(number, locations), boundary, served)
        for stage, number, locations, boundary, served in packed
    )
    return Message(step, visits, errors, poison)


def snapshot(value: Any) -> Any:
    """A copy that later edits and kernels cannot reach."""
    if type(value) is tuple and all(type(item) is torch.Tensor for item in value):
        return tuple(item.clone() for item in value)  # what most layers give
    return map_tensors(value, torch.Tensor.clone)


def same(before: Any, after: Any) -> bool:
    """Whether no tensor of ``after`` differs from its counterpart in ``before``."""
    left, right = tensors_in(before), tensors_in(after)
    return len(left) == len(right) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(left, right, strict=True)
    )


def digest(value: Any) -> int:
    """A checksum over types, shapes and bytes of the tensors in ``value``."""
    result = 0
    for tensor in tensors_in(value):
        result = zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), result)
        data = _bytes_of(tensor.to("cpu"))
        result = zlib.crc32(cast(Any, data.numpy()), result)
    return result

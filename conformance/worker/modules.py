"""An engine's modules in one process: what is hooked to them, and what they compute with.

A block can reach them, and what it changes there is in every later cell. A write in place is
told by the version that torch counts; one that goes around the count, through `.data` for one, by
the values: all of a tiny model's, a sample of others'.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

HOOKS, MODULES = "hooks of the engine's modules", "the engine's modules"
WEIGHTS, BUFFERS = "the engine's weights", "the engine's buffers"

#: Of all tensors together about so many values are compared, of each at least some: pieces of
#: eight bytes, in which a value is whole.
_PIECES, _LEAST, _PIECE = 1 << 18, 64, 8

#: One that does not lie in a row is copied to be looked at: none with more elements.
_COPIED = 1 << 20

#: Where a module has its hooks, and where torch has those of all modules.
_PLACES = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
)
_OF_ALL = tuple(f"_global{place}" for place in _PLACES[:4])


#: Packages that hang up hooks of their own when they are first needed: transformers does where it
#: is asked for hidden states.
_ENGINES = {"accelerate", "nnsight", "transformers", "vllm"}


#: Faults that the self-test injects are no block's doing.
_INJECTED = "conformance.selftest."


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A tensor as it was: its version, None where torch counts none, and a sample of its bytes."""

    tensor: Any
    version: int | None
    values: bytes

    def differs(self, now: Snapshot | None, *, replaced: bool) -> bool:
        """Whether it was written to, or, where that counts, `replaced` by another."""
        if now is None or now.tensor is not self.tensor:
            return replaced
        return (now.version, now.values) != (self.version, self.values)


def state(root: Any) -> dict[str, Any]:
    """What of the module `root` and of those in it cells share, by what it is called."""
    torch = sys.modules["torch"]
    every = dict(root.named_modules())
    tensors = [entry for module in every.values() for entry in _tensors(module)]
    pieces = max(_LEAST, _PIECES // max(1, len(tensors)))
    shared: dict[str, Any] = {
        HOOKS: {"": _hooks(torch.nn.modules.module, _OF_ALL)},
        MODULES: {name: (module, _forward(module)) for name, module in every.items()},
        WEIGHTS: {},
        BUFFERS: {},
    }
    for name, module in every.items():
        if hooks := _hooks(module, _PLACES):
            shared[HOOKS][name] = hooks
        for kind, key, tensor in _tensors(module):
            shared[kind][f"{name}.{key}"] = _snapshot(torch, tensor, pieces)
    return shared


def differs(name: str, value: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether what `state` has under this name is otherwise."""
    if name in {WEIGHTS, BUFFERS}:
        # An engine may put another buffer in place of one that it computes, for longer prompts.
        replaced = name == WEIGHTS
        return (replaced and value.keys() != now.keys()) or any(
            held.differs(now.get(key), replaced=replaced) for key, held in value.items()
        )
    return bool(now != value)


def _tensors(module: Any) -> Iterator[tuple[str, str, Any]]:
    for key, tensor in module._parameters.items():  # noqa: SLF001
        if tensor is not None:
            yield WEIGHTS, key, tensor
    for key, tensor in module._buffers.items():  # noqa: SLF001
        if tensor is not None:
            loaded = key not in module._non_persistent_buffers_set  # noqa: SLF001
            yield WEIGHTS if loaded else BUFFERS, key, tensor


def _hooks(owner: Any, places: tuple[str, ...]) -> tuple[Any, ...]:
    """All that are registered, with their numbers; not those that an engine hangs up itself."""
    return tuple(
        (number, hook)
        for place in places
        for number, hook in (getattr(owner, place, None) or {}).items()
        if str(getattr(hook, "__module__", "")).partition(".")[0] not in _ENGINES
        and not str(getattr(hook, "__module__", "")).startswith(_INJECTED)
    )


def _forward(module: Any) -> Any:
    """What stands in for the forward of its class; not nnsight's own, which may come late."""
    own = vars(module).get("forward")
    return None if type(own).__module__.startswith("nnsight") else own


def _snapshot(torch: Any, tensor: Any, pieces: int) -> Snapshot:
    version, values = None, b""
    with suppress(RuntimeError):  # one that was made under inference mode has none
        version = tensor._version  # noqa: SLF001
    # Some kinds of tensors cannot be looked at as bytes: theirs is the version alone.
    with suppress(RuntimeError, TypeError, NotImplementedError), torch.no_grad():
        values = _sample(torch, tensor.detach(), pieces)
    return Snapshot(tensor, version, values)


def _sample(torch: Any, tensor: Any, pieces: int) -> bytes:
    """Bytes of the tensor, from its whole length."""
    if tensor.is_meta:
        return b""
    if not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        tensor = tensor.permute(order)
        if not tensor.is_contiguous() and tensor.numel() > _COPIED:
            return b""
    flat = tensor.reshape(-1).view(torch.uint8)
    aligned = len(flat) // _PIECE * _PIECE
    step = max(1, aligned // _PIECE // pieces)
    if flat.is_cpu:  # of a small tensor numpy takes a third of what torch does
        array = flat.numpy()
        sample: bytes = (
            array[:aligned].view(f"u{_PIECE}")[::step].tobytes() + array[aligned:].tobytes()
        )
        return sample
    samples = (flat[:aligned].view(-1, _PIECE)[::step].reshape(-1), flat[aligned:])
    return b"".join(sample_bytes.cpu().numpy().tobytes() for sample_bytes in samples)

"""Other libraries as engines: what runs a program where no nnsight trace can.

An adapter is a module with a class that is a `Library` and a function `open_engine`; it says a
program in the library's own words and knows nothing of scenarios. docs/libraries.md shows one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from conformance.authoring import Visit
from conformance.engines import Refused
from conformance.programs import Part

#: A part of the model, and its layer where layers have it.
Place = tuple[str, int | None]


class Ends(NamedTuple):
    """What one prompt gave: an entry a step, [vocabulary] and int64 [1]."""

    logits: list[Tensor]
    tokens: list[Tensor]


class Batch:
    """Prompts that run together, and what each does where a forward passes a place.

    `lengths` are the tokens of each, which the library is to pad on the left.
    """

    def __init__(
        self, prompts: Sequence[str], visits: Sequence[Mapping[Place, Visit]], steps: int
    ) -> None:
        self.prompts = list(prompts)
        self.visits = visits
        self.steps = steps
        self.lengths: list[int] = []
        self._passed: Counter[Place] = Counter()

    def each(self) -> Iterator[tuple[str, Batch]]:
        """The prompts one by one, for a library that takes no more."""
        for index, prompt in enumerate(self.prompts):
            alone = Batch([prompt], self.visits[index : index + 1], self.steps)
            alone.lengths = self.lengths[index : index + 1]
            yield prompt, alone

    @property
    def places(self) -> list[Place]:
        """Every place that a prompt of the batch names, as a forward meets them."""
        parts = list(Part)
        named = dict.fromkeys(place for visits in self.visits for place in visits)
        first = {Part.EMBEDDING: -1, Part.NORM: 1 << 30}
        return sorted(
            named,
            key=lambda place: (
                first.get(Part(place[0]), 0) if place[1] is None else place[1],
                parts.index(Part(place[0])),
            ),
        )

    def pass_by(self, place: Place, whole: Tensor) -> Tensor | None:
        """What goes on from a place instead of `whole` [prompts, positions, width], None where
        nothing changes it. To be called once a step. The rows before a prompt's own are padding.
        """
        step = self._passed[place]
        self._passed[place] += 1
        changed: Tensor | None = None
        for index, visits in enumerate(self.visits):
            if place not in visits:
                continue
            own = slice(-self.lengths[index], None) if step == 0 else slice(None)
            rows = whole[index, own]
            after = visits[place](step, rows)
            if after is not rows:
                changed = whole.clone() if changed is None else changed
                changed[index, own] = after.to(whole.dtype)
        return changed


class Library(Protocol):
    """A model in a library's hands."""

    @property
    def layers(self) -> int: ...

    def identity(self) -> Mapping[str, str]:
        """What was really loaded: "dtype", as torch writes it, and whatever else matters."""

    def tokenize(self, prompt: str) -> list[int]:
        """The ids that the library makes of a text."""

    def run(self, batch: Batch) -> list[Ends]:
        """Generate greedily for all prompts of the batch in one call of the library, where it has
        such a call. Raises Refused, with the reason, for what the library cannot do.
        """


def named(names: Mapping[Part, str], place: Place, library: str) -> str:
    """The library's own name of a place. Raises Refused where it has none."""
    part, layer = place
    if part not in names:
        raise Refused(f"{library} has no name for this place: {part}")
    return names[Part(part)].format(layer=layer)

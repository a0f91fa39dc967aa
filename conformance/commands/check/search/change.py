"""A rewrite's interface: the changes that it proposes, and the clues that it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from conformance.commands.check.search.program import ParsedFile, Splice
from conformance.commands.check.values.known_values import ValuePlace


@dataclass(frozen=True)
class Change:
    """One way to rewrite a file. At equally likely lines, the change with the smaller `cost` is
    tried first. `anywhere` means that the change can explain an effect at other lines.
    """

    splices: tuple[Splice, ...]
    words: str
    cost: int
    anywhere: bool = False


def change(cost: int, words: str, *splices: Splice, anywhere: bool = False) -> Change:
    """Return a change made of these splices."""
    return Change(splices, words, cost, anywhere)


@dataclass(frozen=True)
class Clues:
    """What running a file has shown. Line numbers refer to the text that ran.

    `lines` are those that raised the engine's error, the innermost first. `wrong` names the values
    that differ. `parted` means that the layers' streams differ, so a write is involved. `meant` are
    the places at which transformers computes what the wrong values should hold. `dual` means that a
    layer returns two tensors whose sum is the stream, `single` one tensor. `layers` is the path of
    the engine's list of layers. `modules` are the module names in a layer, `widths` the output
    widths on transformers by module name. `norms` and `embedding` are paths outside the layers.
    """

    lines: tuple[int, ...] = ()
    wrong: tuple[str, ...] = ()
    parted: bool = False
    meant: tuple[ValuePlace, ...] = ()
    dual: bool = False
    single: bool = False
    layers: str = ""
    modules: tuple[str, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)
    head: str = "lm_head"
    norms: tuple[str, ...] = ()
    embedding: str = ""


#: A rewrite yields all changes of its kind.
Rewrite = Callable[[ParsedFile, Clues], Iterator[Change]]

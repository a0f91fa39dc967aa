"""The `lm` members that all tracing engines share (`conformance.spec.authoring.LM`)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from conformance.engines import Refused
from conformance.engines.model_parts import Own, TracedPart, every_row, floating
from conformance.engines.score_rule import read_rule
from conformance.engines.traced import Probe, TracedLayers, vector
from conformance.engines.tree import follow
from conformance.spec.records import Precision


@dataclass(frozen=True)
class UntracedLogProbabilities:
    """See `conformance.spec.authoring.LogProbabilities`."""

    prompt: Tensor
    chosen: list[Tensor]
    top: list[Tensor]
    ids: list[Tensor]


class TracedModel:
    """The parts of a model that a block reads, the same on all engines.

    It is sent to the engine's processes with a block, so it holds only the model and paths.
    """

    #: Return only the rows of the running block's prompt.
    own: Own = staticmethod(every_row)

    def __init__(
        self, model: Any, layers: TracedLayers, probe: Probe, precision: Precision = Precision.BF16
    ) -> None:
        self.model = model
        self.layers = layers
        self.probe = probe
        self.precision = precision

    @property
    def embedding(self) -> TracedPart:
        return TracedPart(follow(self.model, self.layers.parts.embedding), self.own)

    @property
    def norm(self) -> TracedPart:
        return TracedPart(follow(self.model, self.layers.parts.norm), self.own)

    def lens(self, stream: Tensor) -> Tensor:
        head = follow(self.model, self.layers.parts.head)
        # Some of vLLM's norms return a tuple; its first entry is the normalised rows.
        normed = next(floating(follow(self.model, self.layers.parts.norm)(stream)))
        return functional.linear(normed.to(head.weight.dtype), head.weight)[
            :, : self.layers.parts.vocabulary
        ]

    def pattern(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        rule = read_rule(self.probe.observations, layer, query.device)
        if len(query) > len(rule.cos):
            raise Refused(f"the rule of this attention was measured for {len(rule.cos)} positions")
        return rule.probabilities(query, key)

    @property
    def ids(self) -> Tensor:
        inputs = follow(self.model, self.layers.parts.embedding).inputs
        [ids] = [value for value in (*inputs[0], *inputs[1].values()) if isinstance(value, Tensor)]
        return self.own(ids.reshape(-1)).to(torch.int64, copy=True)

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    def tokenize(self, prompt: str) -> list[int]:
        return list(self.tokenizer(prompt).input_ids)

    @staticmethod
    def words(error: Exception) -> str:
        """Return the type and first line of an error that a trace raised. Raise it again if it says
        that the engine does not support this: that is no result.
        """
        if isinstance(error, NotImplementedError):
            raise error
        return words(error)

    @staticmethod
    def decline(words: str) -> NoReturn:
        raise Refused(words)

    def send(self, prompt: Any, steps: int = 1, stop: int | None = None) -> Any:
        raise Refused("a trace runs to its end before the next one begins: one client at a time")

    def received(self, *, errors: bool = False) -> list[Any]:
        answers = self.answers()
        raised = [answer for answer in answers if isinstance(answer, BaseException)]
        if raised and not errors:
            raise raised[0]
        return answers

    def answers(self) -> list[Any]:
        """Return the result or error of every submitted trace, and forget the traces."""
        raise NotImplementedError

    def aborting(self, index: int, after: int) -> AbstractContextManager[None]:
        """Raises RuntimeError on exit if the request had already finished."""
        raise Refused("a generation of transformers runs to its end: nobody can abort a prompt")

    def clear_edits(self) -> None:
        self.model.clear_edits()

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        return vector(self.probe, layer, seed).to(getattr(torch, self.precision.dtype))


def words(error: BaseException) -> str:
    """Return the type and first line of an error that a trace raised.

    nnsight re-raises a block's error as it is or, from another process, as a RuntimeError that
    begins with the original's type and message.
    """
    first = next(iter(str(error).splitlines()), "").strip()
    if type(error) is RuntimeError and first.partition(":")[0].isidentifier():
        return first
    return f"{type(error).__name__}: {first}"

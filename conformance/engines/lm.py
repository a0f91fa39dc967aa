"""The `lm` members that all tracing engines share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from conformance.engines import Refused
from conformance.engines.model_parts import Own, TracedPart, every_row, floating
from conformance.engines.traced import Probe, TracedLayers, vector
from conformance.engines.tree import follow
from conformance.records import Precision


@dataclass(frozen=True)
class UntracedLogProbabilities:
    """An engine's log-probabilities for a prompt and its continuation without a trace.

    `prompt` [tokens - 1, 1] leaves out the first token. The lists have one entry per step: `chosen`
    [1] is the generated token's, `top` [k] the largest in descending order, `ids` int64 [1].
    """

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
        """The token embeddings."""
        return TracedPart(follow(self.model, self.layers.parts.embedding), self.own)

    @property
    def norm(self) -> TracedPart:
        """The norm after the last layer."""
        return TracedPart(follow(self.model, self.layers.parts.norm), self.own)

    def lens(self, stream: Tensor) -> Tensor:
        """Return [rows, vocabulary]: the final norm and the head applied to rows of a stream."""
        head = follow(self.model, self.layers.parts.head)
        # Some of vLLM's norms return a tuple; its first entry is the normalised rows.
        normed = next(floating(follow(self.model, self.layers.parts.norm)(stream)))
        return functional.linear(normed.to(head.weight.dtype), head.weight)[
            :, : self.layers.parts.vocabulary
        ]

    @property
    def ids(self) -> Tensor:
        """The ids, int64 [tokens], that the model was given in this step."""
        inputs = follow(self.model, self.layers.parts.embedding).inputs
        [ids] = [value for value in (*inputs[0], *inputs[1].values()) if isinstance(value, Tensor)]
        return self.own(ids.reshape(-1)).to(torch.int64, copy=True)

    @property
    def tokenizer(self) -> Any:
        """The engine's own tokenizer, for use outside of the blocks."""
        return self.model.tokenizer

    def tokenize(self, prompt: str) -> list[int]:
        """Return this engine's token ids for a text."""
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
        """End the case, since on this model it would test something else, as `words` explains."""
        raise Refused(words)

    def send(self, prompt: Any, steps: int = 1, stop: int | None = None) -> Any:
        """Return nnsight's tracer of a trace that is only submitted when its block ends, so that
        several can run at once. Generation stops early at the id `stop`.
        """
        raise Refused("a trace runs to its end before the next one begins: one client at a time")

    def received(self, *, errors: bool = False) -> list[Any]:
        """Return what each submitted trace saved, by name, in submission order. Raise the first
        error of a trace; with `errors`, return it in the trace's place.
        """
        answers = self.answers()
        raised = [answer for answer in answers if isinstance(answer, BaseException)]
        if raised and not errors:
            raise raised[0]
        return answers

    def answers(self) -> list[Any]:
        """Return the result or error of every submitted trace, and forget the traces."""
        raise NotImplementedError

    def aborting(self, index: int, after: int) -> AbstractContextManager[None]:
        """Make the client abort a request once it has `after` tokens; its saves are lost. `index`
        counts the next trace's prompts, or the next submitted traces.

        Raises RuntimeError on exit if the request had already finished.
        """
        raise Refused("a generation of transformers runs to its end: nobody can abort a prompt")

    def asking(self, steps: int, stop: int | None = None) -> dict[str, Any]:
        """Return the keywords that request `steps` tokens, or an end at the id `stop`, for one
        prompt of a trace, independently of the others.
        """
        raise NotImplementedError

    def log_probabilities(
        self,
        prompt: str,
        *,
        steps: int,
        top: int,
        temperature: float = 0.0,
        seed: int | None = None,
        processed: bool = False,
    ) -> UntracedLogProbabilities:
        """Return the engine's own log-probabilities for a prompt and `steps` tokens, greedy or
        sampled with a seed. They are raw or, if `processed`, taken after temperature.
        """
        raise Refused("this engine gives no log-probabilities")

    def clear_edits(self) -> None:
        """Remove all registered blocks."""
        self.model.clear_edits()

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        """Return a fixed random vector [width] in the engine's precision, with the typical norm of
        the stream after `layer`.
        """
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

"""What `lm` of a scenario has on every engine that traces."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from conformance.engines import Refused
from conformance.engines.model_parts import Own, Part, every_row, floating
from conformance.engines.traced import Layers, Probe, vector
from conformance.engines.tree import follow
from conformance.records import Precision


@dataclass(frozen=True)
class LogProbabilities:
    """What an engine says of a prompt and its continuation without any block.

    `prompt` [tokens - 1, 1]: those of its tokens but the first. An entry a step: `chosen` [1], of
    the token that was generated, `top` [k], the largest in descending order, `ids` int64 [1].
    """

    prompt: Tensor
    chosen: list[Tensor]
    top: list[Tensor]
    ids: list[Tensor]


class TracedModel:
    """The parts of a model that a block reads, alike on all engines.

    Travels into the engine's processes with a block, so it holds the model and paths only.
    """

    #: Cuts a module's rows down to those of the running block's prompt.
    own: Own = staticmethod(every_row)

    def __init__(
        self, model: Any, layers: Layers, probe: Probe, precision: Precision = Precision.BF16
    ) -> None:
        self.model = model
        self.layers = layers
        self.probe = probe
        self.precision = precision

    @property
    def embedding(self) -> Part:
        """The token embeddings."""
        return Part(follow(self.model, self.layers.parts.embedding), self.own)

    @property
    def norm(self) -> Part:
        """The norm after the last layer."""
        return Part(follow(self.model, self.layers.parts.norm), self.own)

    def lens(self, stream: Tensor) -> Tensor:
        """[rows, vocabulary]: the final norm and the head on rows of a stream, nothing more."""
        head = follow(self.model, self.layers.parts.head)
        # Some of vLLM's norms return a tuple: the normalised rows come first.
        normed = next(floating(follow(self.model, self.layers.parts.norm)(stream)))
        return functional.linear(normed.to(head.weight.dtype), head.weight)[
            :, : self.layers.parts.vocabulary
        ]

    @property
    def ids(self) -> Tensor:
        """int64 [tokens]: the ids that the model was given in this step."""
        inputs = follow(self.model, self.layers.parts.embedding).inputs
        [ids] = [value for value in (*inputs[0], *inputs[1].values()) if isinstance(value, Tensor)]
        return self.own(ids.reshape(-1)).to(torch.int64, copy=True)

    @property
    def tokenizer(self) -> Any:
        """The engine's own tokenizer, which is outside of the blocks."""
        return self.model.tokenizer

    def tokenize(self, prompt: str) -> list[int]:
        """The ids that this engine's tokenizer makes of a text."""
        return list(self.tokenizer(prompt).input_ids)

    @staticmethod
    def words(error: Exception) -> str:
        """What an error that came out of a trace says: its type and first line. One that says
        that an engine does not do this is no answer: it is raised again.
        """
        if isinstance(error, NotImplementedError):
            raise error
        return words(error)

    @staticmethod
    def decline(words: str) -> NoReturn:
        """End the case here: what it is about is another thing on this model, in these words."""
        raise Refused(words)

    def send(self, prompt: Any, steps: int = 1, stop: int | None = None) -> Any:
        """nnsight's tracer of a client's own trace, which is only sent off when its block ends:
        several may be under way at once. It ends early at the id `stop`.
        """
        raise Refused("a trace runs to its end before the next one begins: one client at a time")

    def received(self, *, errors: bool = False) -> list[Any]:
        """What each trace that was sent saved, by name, in the order of their sending. The first
        error that came out of one is raised; with `errors` it stands in its trace's place.
        """
        answers = self.answers()
        raised = [answer for answer in answers if isinstance(answer, BaseException)]
        if raised and not errors:
            raise raised[0]
        return answers

    def answers(self) -> list[Any]:
        """The same of every trace that was sent, errors among them. They are forgotten here."""
        raise NotImplementedError

    def aborting(self, index: int, after: int) -> AbstractContextManager[None]:
        """In here the client aborts the request of this index, of the next trace's prompts or of
        the next traces that are sent, once it has so many tokens. Its saves are lost.

        Raises RuntimeError afterwards where the request had come to its end before.
        """
        raise Refused("a generation of transformers runs to its end: nobody can abort a prompt")

    def asking(self, steps: int, stop: int | None = None) -> dict[str, Any]:
        """The keywords by which one prompt of a trace asks for so many tokens, or an end at the
        id `stop`, whatever the others ask for.
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
    ) -> LogProbabilities:
        """What the engine itself says of a prompt and of so many tokens: greedy, or drawn with a
        seed at a temperature. As the engine computes them, or `processed`: after temperature.
        """
        raise Refused("this engine gives no log-probabilities")

    def clear_edits(self) -> None:
        """No registered block acts any more."""
        self.model.clear_edits()

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        """A fixed random vector [width] in the engine's precision, as long as the stream after
        `layer`.
        """
        return vector(self.probe, layer, seed).to(getattr(torch, self.precision.dtype))


def words(error: BaseException) -> str:
    """The type and the first line of an error that came out of a trace.

    nnsight raises what a block raised as it is, or, from another process, as a RuntimeError
    that begins with the original's type and message.
    """
    first = next(iter(str(error).splitlines()), "").strip()
    if type(error) is RuntimeError and first.partition(":")[0].isidentifier():
        return first
    return f"{type(error).__name__}: {first}"

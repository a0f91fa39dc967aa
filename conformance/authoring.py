"""What a scenario may use: `lm` and `case` in its trace, `model` and its runs in its reference.

These protocols are the whole of it. The engines' own classes satisfy them, which `make types`
holds (`conformance.engines.authored`); docs/scenarios.md has an example for each member, and a test
runs them. A scenario that says `def steering(lm: LM, case: Case)` is checked by any type checker.

Shapes: `tokens` counts the prompt's tokens in the first step and is 1 in each later one. Every
tensor that is read is a copy, but for `Part.live`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from conformance.records import Case

if TYPE_CHECKING:  # a scenario's file is read by a parent that needs no tensor for it
    from torch import Tensor

__all__ = [
    "LM",
    "Attention",
    "Case",
    "Edit",
    "Layer",
    "Layers",
    "LogProbabilities",
    "Part",
    "Reference",
    "Run",
    "Visit",
]

#: An edit of the reference: (the stream after its layer, [tokens, width]; the streams of the same
#: step after each earlier layer, by layer) → the stream that goes on.
Edit: TypeAlias = "Callable[[Tensor, Mapping[int, Tensor]], Tensor]"

#: What the reference does at a place of the model: (the step, the rows there) → those that go on.
Visit: TypeAlias = "Callable[[int, Tensor], Tensor]"


class Part(Protocol):
    """A module of the model: attention, MLP or router of a layer, embeddings, final norm."""

    @property
    def input(self) -> Tensor:
        """[tokens, width]: what the module is called with. What is assigned (as many rows, or one
        for all tokens) is what it computes with, and nobody else sees it.
        """

    @input.setter  # noqa: A003 - as nnsight calls it
    def input(self, value: Tensor) -> None: ...

    @property
    def output(self) -> Tensor:
        """[tokens, width]: what it gives; of a tuple the first tensor. What is assigned (as many
        rows, or one for all tokens) goes on in its place.
        """

    @output.setter
    def output(self, value: Tensor) -> None: ...

    @property
    def live(self) -> Tensor:
        """`output` in the model's own memory, which the engine may overwrite later."""


class Attention(Part, Protocol):
    """A layer's attention. Each of its four parts is [tokens, heads, width] of this block's prompt,
    and what is assigned is what the layer goes on with. A trace reads and writes them in the order
    in which the engine computes them, the heads last. `qkv` knows it of the other three.
    """

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, read in the engine's own order."""

    @property
    def query(self) -> Tensor:
        """Each head's query: behind its norm where it has one, before rotary positions."""

    @query.setter
    def query(self, value: Tensor) -> None: ...

    @property
    def key(self) -> Tensor:
        """The keys alike; of grouped heads one for each group."""

    @key.setter
    def key(self, value: Tensor) -> None: ...

    @property
    def value(self) -> Tensor:
        """The values: one for each head of keys."""

    @value.setter
    def value(self, value: Tensor) -> None: ...

    @property
    def heads(self) -> Tensor:
        """What each head gives: the input of the output projection."""

    @heads.setter
    def heads(self, value: Tensor) -> None: ...


class Layer(Protocol):
    """One layer of the model."""

    @property
    def envoy(self) -> Any:
        """nnsight's own module, for what is not here: `tracer.cache(modules=[layer.envoy])`."""

    @property
    def stream(self) -> Tensor:
        """[tokens, width]: the residual stream after the layer, of this block's prompt. What is
        assigned takes its place, whatever the engine's layer returns.
        """

    @stream.setter
    def stream(self, value: Tensor) -> None: ...

    @property
    def input(self) -> Tensor:
        """[tokens, width]: the residual stream that came in."""

    @property
    def attention(self) -> Attention:
        """The first branch."""

    @property
    def mlp(self) -> Part:
        """The second branch; in a mixture of experts the part that holds router and experts."""

    @property
    def router(self) -> Part:
        """What chooses the experts; its output is [tokens, experts]."""

    def has(self, part: str) -> bool:
        """Whether the layer has an "attention", an "mlp", a "router": not every layer has each."""

    def skip(self) -> None:
        """Leave the layer out: what came in goes on."""

    def cached(self, cache: Any) -> list[Tensor]:
        """The stream of each step, [tokens, width], in what `tracer.cache()` kept."""


class Layers(Protocol):
    """The layers, counted from 0; also `len(lm.layers)`, iteration and slices."""

    @property
    def path(self) -> str:
        """Where their list is in `lm.model`: `model.layers`, `transformer.h`, …"""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Layer: ...

    def __iter__(self) -> Iterator[Layer]: ...


class LogProbabilities(Protocol):
    """What an engine says of a prompt and its continuation without any block."""

    @property
    def prompt(self) -> Tensor:
        """[tokens - 1, 1]: those of the prompt's tokens but the first."""

    @property
    def chosen(self) -> list[Tensor]:
        """[1] a step: that of the generated token."""

    @property
    def top(self) -> list[Tensor]:
        """[k] a step: the largest, in descending order."""

    @property
    def ids(self) -> list[Tensor]:
        """int64 [1] a step: the generated token."""


class LM(Protocol):
    """`lm` of a scenario's trace: the model on one engine, behind nnsight."""

    @property
    def model(self) -> Any:
        """nnsight's own model, for what is not here. Its module tree is the engine's."""

    @property
    def layers(self) -> Layers: ...

    @property
    def embedding(self) -> Part:
        """The token embeddings."""

    @property
    def norm(self) -> Part:
        """The norm after the last layer."""

    @property
    def logits(self) -> Tensor:
        """[vocabulary]: the last token's, in this step. Assign to it what the id is chosen by."""

    @logits.setter
    def logits(self, value: Tensor) -> None: ...

    @property
    def token(self) -> Tensor:
        """int64 [1]: the id that this step generated."""

    @property
    def draws(self) -> tuple[Tensor, Tensor]:
        """[rows, vocabulary] and int64 [rows]: the logits and the ids of those of a trace's `draws`
        that this block runs for: all of them on transformers, one on vLLM.
        """

    @property
    def ids(self) -> Tensor:
        """int64 [tokens]: the ids that the model was given in this step."""

    def trace(
        self,
        *prompt: Any,
        steps: int = 1,
        seed: int | None = None,
        extract: bool = False,
        samples: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        draws: int = 1,
    ) -> Any:
        """nnsight's tracer of a generation of so many tokens, for a `with` statement.

        A prompt is a text or token ids; without one the block opens `tracer.invoke(prompt)` for
        each. Greedy, or with a `seed` drawn at a `temperature` from the `top_k` likeliest (0: from
        all), and of these from the likeliest that together hold `top_p`. `extract` asks the engine
        for its own hidden states, `samples` for several continuations of the prompt, `draws` for
        its next id several times (`LM.draws`).
        """

    def asking(self, steps: int, stop: int | None = None) -> dict[str, Any]:
        """Keywords of `tracer.invoke`: one prompt of a trace asks for so many tokens, or an end
        at the id `stop`, whatever the others ask for.
        """

    def send(self, prompt: Any, steps: int = 1, stop: int | None = None) -> Any:
        """nnsight's tracer of a client's own trace, which is only sent off when its block ends,
        so that several are under way at once.
        """

    def received(self, *, errors: bool = False) -> list[Any]:
        """What each trace that was sent saved, by name, in the order of their sending. The first
        error that came out of one is raised; with `errors` it stands in its trace's place.
        """

    def aborting(self, index: int, after: int) -> AbstractContextManager[None]:
        """In here the client aborts the request of this index, of the next trace's prompts or of
        the next traces that are sent, once it has so many tokens. Its saves are lost.
        """

    def decline(self, words: str) -> NoReturn:
        """End the case as unsupported: what it is about is another thing here, in these words."""

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        """[width]: a fixed random vector, about as long as the stream after `layer` is. The same
        numbers as `Reference.direction` gives, in the engine's dtype.
        """

    def lens(self, stream: Tensor) -> Tensor:
        """[rows, vocabulary]: the final norm and the head on rows of a stream."""

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
        """What the engine itself says of a prompt and of so many tokens, without any block: greedy,
        or drawn with a seed at a temperature. As the engine computes them, or `processed`: after
        temperature, which an engine with a setting for it is asked by `settings`.
        """

    def force(self, token: int) -> None:
        """Let the generation go on with this id."""

    @property
    def tokenizer(self) -> Any:
        """This engine's own tokenizer. A block has none: what it needs of it is made before."""

    def tokenize(self, prompt: str) -> list[int]:
        """The ids that this engine's tokenizer makes of a text."""

    def edit(self) -> Any:
        """nnsight's tracer of a block that acts in every trace from now on."""

    def clear_edits(self) -> None:
        """No such block acts any more."""

    def generated(self, result: Any, steps: int) -> list[Tensor]:
        """int64 [1] a step: the ids in a saved `tracer.result`."""

    def extracted(self, result: Any, prompt: str, layers: Sequence[int]) -> dict[int, Tensor]:
        """[tokens, width] by layer: the hidden states in the `tracer.result` of a trace with
        `extract`.
        """

    def words(self, error: Exception) -> str:
        """The type and first line of an error that came out of a trace, alike on all engines."""


class Run(Protocol):
    """What one prompt gave in the reference: each list has an entry a step."""

    @property
    def stream(self) -> list[dict[int, Tensor]]:
        """[tokens, width] after each layer, by layer."""

    @property
    def logits(self) -> list[Tensor]:
        """[vocabulary]: the last token's."""

    @property
    def tokens(self) -> list[Tensor]:
        """int64 [1]: the generated id."""

    @property
    def parts(self) -> list[dict[str, Any]]:
        """What `parts=` asked for, by name; by layer below that, where layers have it."""

    @property
    def ids(self) -> Tensor:
        """int64 [tokens]: the prompt's."""

    def after(self, layer: int) -> list[dict[int, Tensor]]:
        """`stream` from this layer on."""


class Reference(Protocol):
    """`model` of a scenario's reference: transformers' modelling code with forward hooks."""

    def run(
        self,
        prompt: str | Sequence[int],
        *,
        edits: Mapping[int, Edit] | None = None,
        given: Mapping[int, Tensor] | None = None,
        steps: int = 1,
        parts: Sequence[str] = (),
        held: Sequence[int] = (),
        at: Mapping[tuple[str, int | None], Visit] | None = None,
        chosen: Mapping[int, int] | None = None,
    ) -> Run:
        """Generate greedily from one prompt.

        `edits` change the stream after the layers that they are listed by; they act in every step.
        `given` is what the routers of these layers compute with, [width]. `parts` keeps parts of
        the model besides: "embedding", "input", "attention", "attention_input", "mlp",
        "mlp_input", "norm", "router", and "query", "key", "value", "heads" of its attention.
        `held` are the ids that the prompt goes on with, `chosen` those of certain steps. `at` is
        called wherever a forward passes a place: one of `parts`, or "stream", and the layer (None
        where layers have it not).
        """

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        """[width]: the vector that `LM.direction` gives."""

    def project_out(self, rows: Tensor, direction: Tensor) -> Tensor:
        """[rows, width]: the rows without their part along a direction [width]. Computed in several
        ways, as all that a reference is: what is left of a row along the direction is a rounding.
        """

    def lens(self, stream: Tensor) -> Tensor:
        """[rows, vocabulary]: the final norm and the head on rows of a stream."""

    def every_logits(self, prompt: str) -> Tensor:
        """[tokens, vocabulary]: the logits after each token of a prompt."""

    def tokenize(self, prompt: str) -> list[int]:
        """The ids of a text."""

    @property
    def readable(self) -> tuple[str, ...]:
        """What `parts=` can keep of this model."""

    @property
    def routed(self) -> list[int]:
        """The layers that have a router."""

    def having(self, part: str) -> list[int]:
        """The layers that have this part, as `Layer.has` says: "heads", "qkv", "attention" …"""

    @property
    def forced(self) -> tuple[tuple[int, ...], ...]:
        """The ids that each prompt's generation is held to, () where it is free: an engine that
        drew other tokens is followed along them.
        """

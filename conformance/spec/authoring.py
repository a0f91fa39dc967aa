"""The interface of a scenario: `lm` and `case` in its trace, `model` and its runs in its reference.

A scenario may use only these protocols. `make types` checks that the engines' classes satisfy them
(`conformance.engines.authored`). docs/scenarios.md has a tested example for each member. Annotate
`def steering(lm: LM, case: Case)` to have a type checker check a scenario.

Shapes: `tokens` is the number of prompt tokens in the first step and 1 in each later step. Every
tensor that is read is a copy, except `Part.live`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from conformance.spec.records import Case

if TYPE_CHECKING:  # the parent reads a scenario's file without tensors
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
#: step after each earlier layer, by layer) → the stream that replaces it.
Edit: TypeAlias = "Callable[[Tensor, Mapping[int, Tensor]], Tensor]"

#: A hook at a place of the reference: (the step, the rows there) → the rows that replace them.
Visit: TypeAlias = "Callable[[int, Tensor], Tensor]"


class Part(Protocol):
    """A module of the model: attention, MLP or router of a layer, embeddings, final norm."""

    input: Tensor
    """The module's input, [tokens, width]. Assigning (as many rows, or one for all tokens) changes
    what this module computes with, and nothing else.
    """

    output: Tensor
    """The module's output, [tokens, width]; the first tensor of a tuple. Assigning (as many rows,
    or one for all tokens) replaces it.
    """

    @property
    def live(self) -> Tensor:
        """`output` in the model's own memory, which the engine may overwrite later."""


class Attention(Part, Protocol):
    """A layer's attention. Each of its four parts is [tokens, heads, width] of this block's prompt.
    Assigning replaces what the layer continues with. A trace must read and write them in the order
    in which the engine computes them, the heads last; `qkv` handles the order of the other three.
    """

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, read in the engine's own order."""

    query: Tensor
    """Each head's query: after its norm if it has one, before rotary positions."""

    key: Tensor
    """The keys at the same point; for grouped heads one per group."""

    value: Tensor
    """The values: one for each key head."""

    heads: Tensor
    """The output of each head: the input of the output projection."""


class Layer(Protocol):
    """One layer of the model."""

    @property
    def envoy(self) -> Any:
        """nnsight's own module, for features not here: `tracer.cache(modules=[layer.envoy])`."""

    stream: Tensor
    """The residual stream after the layer, [tokens, width], of this block's prompt. Assigning
    replaces it, whatever form the engine's layer returns.
    """

    @property
    def input(self) -> Tensor:
        """The residual stream before the layer, [tokens, width]."""

    @property
    def attention(self) -> Attention:
        """The first branch."""

    @property
    def mlp(self) -> Part:
        """The second branch; in a mixture of experts the part with the router and the experts."""

    @property
    def router(self) -> Part:
        """The module that chooses the experts; its output is [tokens, experts]."""

    def has(self, part: str) -> bool:
        """Return whether the layer has an "attention", an "mlp" or a "router"."""

    def skip(self) -> None:
        """Skip the layer: its input is passed on."""

    def cached(self, cache: Any) -> list[Tensor]:
        """Return the stream of each step, [tokens, width], from what `tracer.cache()` kept."""


class Layers(Protocol):
    """The layers, counted from 0; supports `len(lm.layers)`, iteration and slices."""

    @property
    def path(self) -> str:
        """The path of their list in `lm.model`: `model.layers`, `transformer.h`, …"""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Layer: ...

    def __iter__(self) -> Iterator[Layer]: ...


class LogProbabilities(Protocol):
    """An engine's log-probabilities of a prompt and its continuation, computed without a block."""

    @property
    def prompt(self) -> Tensor:
        """The log-probabilities of the prompt's tokens except the first, [tokens - 1, 1]."""

    @property
    def chosen(self) -> list[Tensor]:
        """The log-probability of the generated token, [1] per step."""

    @property
    def top(self) -> list[Tensor]:
        """The largest log-probabilities, in descending order, [k] per step."""

    @property
    def ids(self) -> list[Tensor]:
        """The generated token, int64 [1] per step."""


class LM(Protocol):
    """`lm` of a scenario's trace: the model on one engine, through nnsight."""

    @property
    def model(self) -> Any:
        """nnsight's own model, for features not here. Its module tree is the engine's."""

    @property
    def layers(self) -> Layers: ...

    @property
    def embedding(self) -> Part:
        """The token embeddings."""

    @property
    def norm(self) -> Part:
        """The norm after the last layer."""

    logits: Tensor
    """The last token's logits in this step, [vocabulary]. Assign to change the chosen id."""

    @property
    def token(self) -> Tensor:
        """The id that this step generated, int64 [1]."""

    @property
    def draws(self) -> tuple[Tensor, Tensor]:
        """The logits [rows, vocabulary] and ids int64 [rows] of the trace's `draws` that this block
        runs for: all of them on transformers, one on vLLM.
        """

    @property
    def ids(self) -> Tensor:
        """The model's input ids in this step, int64 [tokens]."""

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
        """Return nnsight's tracer of a generation of `steps` tokens, for a `with` statement.

        A prompt is a text or token ids; without one the block opens `tracer.invoke(prompt)` for
        each. Generation is greedy, or with a `seed` sampled at a `temperature` from the `top_k`
        likeliest tokens (0: all), and among these from the likeliest that together hold `top_p`.
        `extract` requests the engine's own hidden states, `samples` several continuations of the
        prompt, `draws` several samples of its next id (`LM.draws`).
        """

    def asking(self, steps: int, stop: int | None = None) -> dict[str, Any]:
        """Return keywords of `tracer.invoke` for one prompt of a trace: it generates `steps`
        tokens, or ends at the id `stop`, independently of the others.
        """

    def send(self, prompt: Any, steps: int = 1, stop: int | None = None) -> Any:
        """Return nnsight's tracer of one client's trace. The trace is sent when its block ends,
        without waiting, so that several are in progress at once.
        """

    def received(self, *, errors: bool = False) -> list[Any]:
        """Return what each sent trace saved, by name, in sending order. Raises the first error of a
        trace; with `errors` the error is returned in that trace's place.
        """

    def aborting(self, index: int, after: int) -> AbstractContextManager[None]:
        """While active, the client aborts one request after `after` tokens and loses its saves.
        `index` counts the next trace's prompts, or the next traces that are sent.
        """

    def decline(self, words: str) -> NoReturn:
        """End the case as unsupported, with this message: its subject differs on this engine."""

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        """Return a fixed random vector, [width], about as long as the stream after `layer`. Its
        values equal those of `Reference.direction`, in the engine's dtype.
        """

    def lens(self, stream: Tensor) -> Tensor:
        """Apply the final norm and the head to rows of a stream. Returns [rows, vocabulary]."""

    def pattern(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        """Return attention probabilities, [tokens, heads, tokens], recomputed from the queries and
        keys of a prompt that a trace read in this layer, by the rotary positions, scale, cap, mask,
        window and sinks of transformers' attention.
        """

    def log_probabilities(
        self,
        prompt: str | Sequence[int],
        *,
        steps: int,
        top: int,
        temperature: float = 0.0,
        seed: int | None = None,
        processed: bool = False,
    ) -> LogProbabilities:
        """Return the engine's own log-probabilities of a prompt (a text or token ids) and `steps`
        tokens, without a block: greedy, or sampled with a seed at a temperature. With `processed`
        they are computed after temperature, for which some engines need a setting in `settings`.
        """

    def force(self, token: int) -> None:
        """Continue the generation with this id."""

    @property
    def tokenizer(self) -> Any:
        """This engine's own tokenizer. It does not exist inside a block: use it before."""

    def tokenize(self, prompt: str) -> list[int]:
        """Return the ids that this engine's tokenizer makes of a text."""

    def edit(self) -> Any:
        """Return nnsight's tracer of a block that acts in every trace from now on."""

    def clear_edits(self) -> None:
        """Remove all such blocks."""

    def generated(self, result: Any, steps: int) -> list[Tensor]:
        """Return the ids in a saved `tracer.result`, int64 [1] per step."""

    def extracted(self, result: Any, prompt: str, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the hidden states, [tokens, width] by layer, in the `tracer.result` of a trace
        with `extract`.
        """

    def words(self, error: Exception) -> str:
        """Return the type and first line of an error from a trace, the same on all engines."""


class Run(Protocol):
    """The result of one prompt in the reference: each list has an entry per step."""

    @property
    def stream(self) -> list[dict[int, Tensor]]:
        """The stream after each layer, [tokens, width], by layer."""

    @property
    def logits(self) -> list[Tensor]:
        """The last token's logits, [vocabulary]."""

    @property
    def tokens(self) -> list[Tensor]:
        """The generated id, int64 [1]."""

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts that `parts=` requested, by name, and then by layer for parts of layers."""

    @property
    def ids(self) -> Tensor:
        """The prompt's ids, int64 [tokens]."""

    def after(self, layer: int) -> list[dict[int, Tensor]]:
        """Return `stream` from this layer on."""


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

        `edits` change the stream after the layers that they are listed by, in every step. `given`
        replaces the input of these layers' routers, [width]. `parts` also keeps these parts of the
        model: "embedding", "input", "attention", "attention_input", "mlp", "mlp_input", "norm",
        "router", and "query", "key", "value", "heads" of its attention, or "pattern": the
        probabilities that eager attention returns, [tokens, heads, tokens]. `held` are ids appended
        to the prompt, `chosen` the ids of certain steps. `at` is called whenever a forward pass
        reaches a place: one of `parts` except "pattern", or "stream", and the layer (None for a
        part outside the layers).
        """

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        """Return the vector that `LM.direction` returns, [width]."""

    def project_out(self, rows: Tensor, direction: Tensor) -> Tensor:
        """Return the rows [rows, width] without their component along a direction [width]. Baseline
        runs compute it in different precisions, because what remains along it is rounding error.
        """

    def lens(self, stream: Tensor) -> Tensor:
        """Apply the final norm and the head to rows of a stream. Returns [rows, vocabulary]."""

    def every_logits(self, prompt: str) -> Tensor:
        """Return the logits after each token of a prompt, [tokens, vocabulary]."""

    def tokenize(self, prompt: str) -> list[int]:
        """Return the ids of a text."""

    @property
    def readable(self) -> tuple[str, ...]:
        """The names that `parts=` accepts for this model."""

    @property
    def routed(self) -> list[int]:
        """The layers that have a router."""

    def having(self, part: str) -> list[int]:
        """Return the layers that have this part, as `Layer.has`: "heads", "qkv", "attention" …"""

    @property
    def forced(self) -> tuple[tuple[int, ...], ...]:
        """The ids that each prompt's generation is forced to follow, () if it is free. They are
        those of an engine that drew other tokens.
        """

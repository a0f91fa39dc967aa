"""Install the hook points in a worker's processes. The engines know nothing about them.

They are installed before the engine is opened, so that stages forked from the worker have them too.
Without an active fault, every point passes its value through.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.commands.selftest.fault import SKIPPED, Inexpressible, Point, Raw, find
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.injecting import switch
from conformance.spec.residual_stream import LAYOUTS

_LAYER = re.compile(r"\.(\d+)\.(?:output|input)")
_INDEX = re.compile(r"\.(\d+)(?:\.|$)")
#: Returns the rows of the block's own prompt; the rows before them are padding.
Own = Callable[[Tensor], Tensor]
#: nnsight's names for the id that a step generated: on vLLM, on transformers.
_CHOSEN = ("samples", "streamer.output")
#: The engine for which this process, or the one that it was forked from, has the points.
_INSTALLED: set[str] = set()


def install(engine: str, *, pipeline: int) -> None:
    """Install every point of a worker with this engine."""
    from conformance.engines.model_parts import TracedAttention, TracedLayer, TracedPart
    from conformance.engines.traced import TracedLayers
    from conformance.spec.residual_stream import StreamLayer

    _value(StreamLayer, "stream", Point.READ, "output")
    _value(TracedLayer, "input", Point.INPUT)
    _value(TracedPart, "input", Point.PART)
    _value(TracedPart, "output", Point.PART)
    _value(TracedPart, "live", Point.LIVE)
    _held(TracedAttention)
    _skip(TracedLayer)
    _path(TracedLayers)
    tracer = importlib.import_module("nnsight.intervention.tracer").InterleavingTracer
    _unless_prevented(tracer, "stop", Point.STOP)
    _INSTALLED.add(engine)
    if engine == "hf":
        from conformance.engines.hf import HFModel, PaddedLayer, without_padding

        install_in_mediator(without_padding)
        _value(PaddedLayer, "stream", Point.READ, "output")
        _lm(HFModel)
        return
    from conformance.engines.vllm.engine import VLLMModel

    install_in_mediator(lambda rows: rows)
    _lm(VLLMModel)
    _spans()
    _collected()
    rpc = importlib.import_module("conformance.engines.vllm.inside.worker_rpc").HarnessRPC
    setattr(rpc, TOLD, arm_worker)
    if pipeline > 1:
        _relay()


def _value(kind: Any, name: str, point: Point, raw: str = "inputs") -> None:
    """Put a point into a property. An assignment to it passes `Point.GIVEN` if it is a part's."""
    original = kind.__dict__[name]

    def passed(self: Any, point: Point, value: Any) -> Any:
        return switch.passes(point, value, _layer_of(self), lambda: getattr(self.envoy, raw))

    def read(self: Any) -> Any:
        return passed(self, point, original.fget(self))

    def write(self: Any, value: Any) -> None:
        new = value if point is Point.READ else passed(self, Point.GIVEN, value)
        if new is not SKIPPED:
            original.fset(self, new)

    setattr(kind, name, property(read, write if original.fset else None))


def _held(kind: Any) -> None:
    original = kind.held

    def read(self: Any, part: str) -> Any:
        value = original(self, part)
        return switch.passes(Point.HELD, value, _layer_of(self), lambda: (part, self))

    kind.held = read


def _layer_of(part: Any) -> int | None:
    """Return the layer that is, or contains, a part; None for the embeddings and final norm."""
    index = _INDEX.search(part.envoy.path)
    return int(index.group(1)) if index else None


def _skip(kind: Any) -> None:
    def skip(self: Any) -> None:
        inputs = self.envoy.inputs
        new = switch.passes(Point.SKIP, passed_on(inputs, self.layout), _layer_of(self))
        if new is not SKIPPED:
            self.envoy.skip(new)

    # Imported by name: the parent also reads this module, and has no engine installed.
    passed_on = importlib.import_module("conformance.engines.model_parts").passed_on
    kind.skip = skip


def _path(kind: Any) -> None:
    original = kind.__getitem__

    def item(self: Any, index: Any) -> Any:
        path = self.path
        self.path = switch.passes(Point.PATH, path)
        try:
            return original(self, index)
        finally:
            self.path = path

    kind.__getitem__ = item


def _unless_prevented(kind: Any, name: str, point: Point) -> None:
    """Let a method be called only if the point lets it."""
    original = getattr(kind, name)

    def called(self: Any) -> None:
        if switch.passes(point, value=True):
            original(self)

    setattr(kind, name, called)


def _lm(kind: Any) -> None:
    token = kind.__dict__["token"]
    trace, lens, generated = kind.trace, kind.lens, kind.generated
    extracted, force = kind.extracted, kind.force

    def traced(self: Any, *prompt: Any, **how: Any) -> Any:
        changed = switch.passes(Point.ASKED, how)
        if changed is None:  # without any of the parameters
            return self.model.trace(*prompt)
        return trace(self, *prompt, **changed)

    def through_lens(self: Any, stream: Any) -> Any:
        return switch.passes(Point.LENS, lens(self, stream), raw=lambda: (self, stream))

    def handed_out(self: Any, *layers: Any) -> Any:
        rows = extracted(self, *layers)
        return {at: switch.passes(Point.EXTRACTED, value, at) for at, value in rows.items()}

    def forced(self: Any, token: int) -> None:
        new = switch.passes(Point.FORCE, token)
        if new is not SKIPPED:
            force(self, new)

    def ids(result: Any, steps: int) -> Any:
        return switch.passes(Point.RESULT, generated(result, steps))

    kind.token = property(lambda self: switch.passes(Point.CHOICE, token.fget(self)))
    kind.trace, kind.lens, kind.generated = traced, through_lens, staticmethod(ids)
    kind.extracted, kind.force = handed_out, forced
    _unless_prevented(kind, "clear_edits", Point.CLEAR)


def _spans() -> None:
    batcher = importlib.import_module("nnsight.modeling.vllm.batching").VLLMBatcher
    original = batcher.narrow

    def narrow(self: Any, value: Any, group: Any) -> Any:
        if group is None or not switch.acts(Point.SPAN):
            return original(self, value, group)
        start, size = group
        begin = switch.passes(Point.SPAN, start, raw=lambda: (size, self.total))
        return original(self, value, [begin, size])

    batcher.narrow = narrow


def _collected() -> None:
    runners = importlib.import_module("nnsight.modeling.vllm.model_runners.GPUModelRunner")
    kind = runners.NNsightGPUModelRunner
    original = kind.collect_nnsight

    def collect(self: Any, *args: Any, **more: Any) -> Any:
        payload = original(self, *args, **more)
        if payload is None or not switch.acts(Point.COLLECTED):
            return payload
        # The payload comes from this process.
        by_request = pickle.loads(payload)  # noqa: S301
        return pickle.dumps(switch.passes(Point.COLLECTED, by_request))

    kind.collect_nnsight = collect


#: The method that switches a fault on in a worker behind another process. Such a worker accepts
#: plain values and a method's name, but no function.
TOLD = "selftest_arm"


def _relay() -> None:
    from conformance.engines.vllm.relay import stage
    from conformance.engines.vllm.relay.replay import RelayInterleaver, replay

    serve = RelayInterleaver._serve  # noqa: SLF001 - this is the seam

    def recorded(self: Any, log: Any, index: int, ready: Any, value: Any) -> Any:
        after = serve(self, log, index, ready, value)
        place = _LAYER.search(log.locations[index])
        layer = int(place.group(1)) if place else None
        noted = switch.passes(Point.RECORD, log.served[index], layer)
        if noted is None:
            del log.served[index]
        else:
            log.served[index] = noted
        return after

    def replayed(interleaver: Any, visits: Any, batch: Any, device: Any) -> Any:
        visits = switch.passes(Point.REPLAY, visits)
        return {} if visits is None else replay(interleaver, visits, batch, device)

    # Set by name: the stages look them up at run time.
    setattr(RelayInterleaver, "_serve", recorded)  # noqa: B010
    setattr(stage, "replay", replayed)  # noqa: B010


def arm_worker(
    worker: Any, name: str, layers: int, noise: Sequence[float], path: str, layout: str
) -> str:
    """Switch a fault on in a process of vLLM, also in its model. Return "" or why that fails."""
    from conformance.engines.vllm.inside.worker_rpc import pipeline_place

    if not name:
        switch.disarm()
        return ""
    stage, stages = pipeline_place()
    if not _INSTALLED:  # not forked from a process with the points
        install("vllm", pipeline=stages)
    variant = find(FAULTS, name)
    moment = variant.moment(layers, stage=stage, stages=stages, noise=tuple(noise))
    armed = switch.Armed(variant, moment, path, layout)
    switch.arm(armed)
    return hook_model(armed, worker.model_runner.get_model())


def hook_model(armed: switch.Armed, model: Any) -> str:
    """Put a fault of the forward into this process's part of the model. Return "" or why not."""
    if armed.variant.fault.point is not Point.FORWARD:
        return ""
    try:
        armed.handles.extend(armed.variant.fault.act(model, armed.moment))
    except Inexpressible as error:
        return str(error)
    return ""


def install_in_mediator(own: Own) -> None:
    """Install the points in nnsight's mediator: what it hands to a block, and takes from one.

    `Mediator.value` gives a block a module's value, and `Mediator.swap` replaces it by the block's.
    They run in the process that runs the block: transformers' own, or each stage of vLLM. So the
    engine and the adapter work correctly, and only what passes between them is wrong.
    """
    mediator = importlib.import_module("nnsight.intervention.interleaver").Mediator
    value, swap = mediator.value.__func__, mediator.swap.__func__

    def handed_out(kind: Any, location: str) -> Any:
        output = value(kind, location)
        layer = switch.layer_of(location)
        if layer is not None and switch.acts(Point.SERVED):
            return _change_stream(output, layer, own)
        if layer is None and switch.acts(Point.LOGITS):
            return _change_logits(output, location)
        if switch.acts(Point.ARGUMENTS):
            called = switch.layer_of(location, "input")
            return output if called is None else switch.passes(Point.ARGUMENTS, output, called)
        if location.endswith(_CHOSEN) and switch.acts(Point.CHOSEN):
            return switch.passes(Point.CHOSEN, output)
        return output

    def taken_in(kind: Any, location: str, new: Any) -> None:
        layer = switch.written(location)
        if layer is None or not switch.acts(Point.TAKEN):
            swap(kind, location, new)
            return
        before = value(kind, location)
        stream = LAYOUTS[switch.layout()].read(new)
        changed = switch.passes(Point.TAKEN, own(stream).clone(), layer, lambda: before)
        if isinstance(changed, Raw):
            swap(kind, location, changed.output)
        elif changed is not SKIPPED:
            swap(kind, location, _put(new, stream, changed, own))

    mediator.value, mediator.swap = classmethod(handed_out), classmethod(taken_in)


def _change_stream(output: Any, layer: int, own: Own) -> Any:
    """Return a layer's output with the fault in its stream."""
    stream = LAYOUTS[switch.layout()].read(output)
    rows = own(stream).clone()
    changed = switch.passes(Point.SERVED, rows, layer, lambda: output)
    unchanged = changed is rows and torch.equal(rows, own(stream))
    return output if unchanged else _put(output, stream, changed, own)


def _put(output: Any, stream: Tensor, rows: Tensor, own: Own) -> Any:
    """Return a layer's output with these rows of the stream, and its padding unchanged."""
    padding = len(stream) - len(own(stream))
    padded = torch.cat([stream[:padding], rows]) if padding else rows
    if switch.layout() == "dual":  # both summands need as many rows
        return padded, torch.zeros_like(padded)
    return LAYOUTS[switch.layout()].write(output, padded)


def _change_logits(output: Any, location: str) -> Any:
    """Return a step's logits with the fault in the last row: vLLM's, or transformers' output."""
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        changed = copy.copy(output)
        changed.logits = _last_row(logits)
        return changed
    if isinstance(output, Tensor) and location.rpartition(".")[2] == "logits":
        return _last_row(output)
    return output


def _last_row(logits: Tensor) -> Tensor:
    rows = logits.clone()
    flat = rows.reshape(-1, rows.shape[-1])
    flat[-1] = switch.passes(Point.LOGITS, flat[-1].clone())
    return flat.reshape(rows.shape)

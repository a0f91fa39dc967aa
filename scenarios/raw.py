"""Raw: traces as nnsight's documentation teaches them, through the model's own modules, on what
these give as they give it, kept without a copy.

What a layer's `output` is differs: one tensor [tokens, width] or [1, tokens, width], a tuple that
begins with one, or two summands whose sum is the residual stream. Each documented way
of reading it is a case: `output` itself, `output[0]`, and `output[0] + output[1]`; and so is a
write through each of them: `[:] = 0`. `lm.layers[i].stream` is read in the same trace, and a copy
of the output, to say which of the ways holds while the layer runs: a cell whose way is not the one
that holds says what the value is instead, and is no failure. What is judged is the output that
was kept without a copy: where memory is used again it holds something else at the end, and is
wrong. Where none of the ways gives the stream the cell is judged as if it did, and is wrong, too.
The same holds for a layer's `input`, its first positional argument, and for `samples`.
"""

from operator import attrgetter

import torch

from conformance import scenario

#: The documented ways to the residual stream → how the value is had from a layer's output.
WAYS = {
    "whole": lambda output: output,
    "first": lambda output: output[0],
    "sum": lambda output: output[0] + output[1],
}
AS_WRITTEN = {"whole": "output", "first": "output[0]", "sum": "output[0] + output[1]"}


def module(lm, index):
    """A layer by its path in the model, as a user writes it: `model.model.layers[3]`."""
    return attrgetter(lm.layers.path)(lm.model)[index]


def rows(value, way):
    """[tokens, width] of a layer's output, read in this way; None where it cannot be."""
    try:
        value = WAYS[way](value)
    except (IndexError, TypeError, RuntimeError):  # no such part, or parts of other shapes
        return None
    if not isinstance(value, torch.Tensor):
        return None
    return value[0] if value.ndim == 3 and len(value) == 1 else value


def copy_of(output):
    """A layer's output, whatever it is, as it is now."""
    if isinstance(output, torch.Tensor):
        return output.clone()
    return [part.clone() if isinstance(part, torch.Tensor) else None for part in output]


def shaped(value):
    """The form of what a module gave, in words."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(shaped(part) for part in value)})"
    return type(value).__name__


def holds(outputs, streams, way):
    """Whether this way gives the stream of every layer."""
    return all(
        isinstance(read := rows(output, way), torch.Tensor) and torch.equal(read, stream)
        for output, stream in zip(outputs, streams, strict=True)
    )


def require(lm, outputs, streams, way):
    """Decline, in words, where another of the documented ways is the one that gives the stream."""
    holding = [other for other in WAYS if holds(outputs, streams, other)]
    if holding and way not in holding:
        read = rows(outputs[0], way)
        what = "is no tensor" if read is None else f"is {shaped(read)}, and not the stream"
        lm.decline(
            f"a layer's output is {shaped(outputs[0])}: `{AS_WRITTEN[way]}` {what}; "
            f"the stream is `{AS_WRITTEN[holding[0]]}`"
        )


def reading(lm, case, way):
    """Every layer's output, kept as it is, and a copy of it and the stream beside it."""
    with lm.trace(case.prompts[0]):
        kept, copies, streams = [], [], []
        for index in range(len(lm.layers)):
            output = module(lm, index).output
            kept.append(output)
            copies.append(copy_of(output))
            streams.append(lm.layers[index].stream)
        kept, copies, streams = kept.save(), copies.save(), streams.save()
    require(lm, copies, streams, way)
    read = {index: rows(output, way) for index, output in enumerate(kept)}
    # What cannot be read in this way, nor in another, is not there.
    return [{"raw": {index: value for index, value in read.items() if value is not None}}]


def writing(lm, case, way):
    """One layer's output set to zero in place; what it was before, and what follows."""
    at = case.layers["at"]
    with lm.trace(case.prompts[0]):
        stream = lm.layers[at].stream
        output = module(lm, at).output
        before = copy_of(output)
        before, stream = before.save(), stream.save()
        if case.active:
            if way == "whole":
                module(lm, at).output[:] = 0
            if way in {"first", "sum"}:
                module(lm, at).output[0][:] = 0
            if way == "sum":
                module(lm, at).output[1][:] = 0
        after = {index: lm.layers[index].stream for index in range(at, len(lm.layers))}
        after = after.save()
        logits = lm.logits.save()
    require(lm, [before], [stream], way)
    return [{"stream": after, "logits": logits}]


def first_argument(lm, case):
    """Every layer's `input`: the first of its positional arguments."""
    with lm.trace(case.prompts[0]):
        given, copies, streams = [], [], []
        for index in range(len(lm.layers)):
            given.append(module(lm, index).input)
            copies.append(arguments(module(lm, index).inputs))
            streams.append(lm.layers[index].input)
        given, copies, streams = given.save(), copies.save(), streams.save()
    for index, value in enumerate(given):
        if what := instead(value, copies[index], streams[index]):
            lm.decline(f"layer {index}'s `input` is {shaped(value)}: {what}")
    return [{"input": {index: rows(value, "whole") for index, value in enumerate(given)}}]


def arguments(inputs):
    """Copies of all tensors of numbers among a layer's arguments."""
    positional, named = inputs
    values = [*positional, *named.values()]
    return [
        value.clone()
        for value in values
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]


def instead(value, copies, stream):
    """What a first argument is where it is by design not the stream, in words, else "". It must be
    seen to be that, in what the layer was given: another argument is the stream, or this one and
    another add up to it. What is neither is handed out wrongly, and is judged as the stream.
    """
    alike = [rows(copy, "whole") for copy in copies]
    alike = [copy for copy in alike if copy.shape == stream.shape]
    whole = any(torch.equal(copy, stream) for copy in alike)
    summed = any(torch.equal(alike[0] + copy, stream) for copy in alike[1:])
    if not value.is_floating_point():
        return "the places of the tokens" if whole or summed else ""
    return "one summand of the stream" if summed and not torch.equal(alike[0], stream) else ""


def sampled(lm, case):
    """The ids of every step in `model.samples`."""
    if not hasattr(type(lm.model), "samples"):
        lm.decline("the model has no `samples`: ids are in `tracer.result`")
    with lm.trace(case.prompts[0], steps=case.steps) as tracer:
        ids, logits = [].save(), [].save()
        for _ in tracer.iter[: case.steps]:
            logits.append(lm.logits)
            ids.append(lm.model.samples)
    # int32 there, int64 elsewhere: the same ids.
    return [{"tokens": [each.reshape(1).long() for each in ids], "logits": logits}]


READS = {f"read_{way}": way for way in WAYS}
WRITES = {f"write_{way}": way for way in WAYS}


@scenario(
    layers={"at": "middle"},
    options={"of": (*READS, *WRITES, "input", "samples")},
    steps=3,
    twin=lambda case: case.options["of"] in WRITES,
    numerics=False,
)
def raw(lm, case):
    of = case.options["of"]
    if of in READS:
        return reading(lm, case, READS[of])
    if of in WRITES:
        return writing(lm, case, WRITES[of])
    return first_argument(lm, case) if of == "input" else sampled(lm, case)


@raw.reference
def _(model, case):
    of, at, prompt = case.options["of"], case.layers["at"], case.prompts[0]
    if of in READS:
        return [{"raw": model.run(prompt).stream[0]}]
    if of in WRITES:
        run = model.run(prompt, edits={at: lambda stream, _: stream * 0} if case.active else {})
        return [{"stream": run.after(at), "logits": run.logits}]
    if of == "input":
        return [{"input": model.run(prompt, parts=("input",)).parts[0]["input"]}]
    run = model.run(prompt, steps=case.steps)
    return [{"tokens": run.tokens, "logits": run.logits}]

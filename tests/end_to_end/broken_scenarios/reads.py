"""The streams and the logits are read, one way right and the others wrong."""

from conformance import scenario

from ._parts import read, streams


def with_nan(values):
    values[1][0, 0] = float("nan")
    return values


def coarse(value):
    """Cut to eight bits."""
    scale = value.abs().max() / 31
    return (value / scale).round() * scale


#: What is returned instead of the streams, by layer.
INSTEAD = {
    "correct": lambda values: values,
    "doubled": lambda values: {index: value * 2 for index, value in values.items()},
    "short_rows": lambda values: {index: value[1:] for index, value in values.items()},
    "lost_key": lambda values: values,
    "not_a_number": with_nan,
    "layer_off": lambda values: {index: values[max(index - 1, 0)] for index in values},
    "half_precision": lambda values: {index: coarse(value) for index, value in values.items()},
}


def block(lm, kind):
    found = {"stream": INSTEAD[kind](streams(lm))}
    if kind != "lost_key":
        found["logits"] = lm.logits
    return found


@scenario(options={"kind": tuple(INSTEAD)})
def reads(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case.options["kind"]).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case.options["kind"]).save()
    return [first, second]


reads.reference(read)

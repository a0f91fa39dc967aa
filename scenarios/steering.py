"""Steering: add a fixed vector to the residual stream after one layer.

A small dose (0.5 % of the stream's usual length, far below the noise) and a large one,
at one token (the last) and at all of them; read back there, further on and in the logits.
"""

from conformance import scenario
from conformance.spec.programs import Do, Form, Operation, Program, Tokens

DOSES = {"small": 0.005, "large": 0.5}


def block(lm, case):
    """What each prompt's block does."""
    at = case.layers["at"]
    if case.active:
        vector = DOSES[case.options["dose"]] * lm.direction(at)
        stream = lm.layers[at].stream
        rows = slice(None) if case.options["tokens"] == "all" else slice(-1, None)
        stream[rows] = stream[rows] + vector
        lm.layers[at].stream = stream
    after = range(at, len(lm.layers))
    return {"stream": {index: lm.layers[index].stream for index in after}, "logits": lm.logits}


@scenario(
    layers={"at": ("first", "middle", "last")},
    options={"dose": ("small", "large"), "tokens": ("one", "all")},
    twin=True,
)
def steering(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@steering.reference
def _(model, case):
    at = case.layers["at"]
    vector = DOSES[case.options["dose"]] * model.direction(at)

    def steer(stream, earlier):
        steered = stream + vector
        if case.options["tokens"] == "one":
            steered[:-1] = stream[:-1]
        return steered

    edits = {at: steer} if case.active else {}
    runs = [model.run(prompt, edits=edits) for prompt in case.prompts]
    return [{"stream": run.after(at), "logits": run.logits} for run in runs]


@steering.program
def _(layers, case):
    at, dose = case.layers["at"], DOSES[case.options["dose"]]
    rows = Tokens.ALL if case.options["tokens"] == "all" else Tokens.LAST
    reads = [Operation(Do.READ, layer=layer) for layer in range(at, layers)]
    steer = Operation(Do.ADD, layer=at, tokens=rows, amount=dose)
    program = Program(case.prompts, (steer, *reads))
    return Form(program, {"stream": tuple(range(1, 1 + len(reads)))}, ("logits",))

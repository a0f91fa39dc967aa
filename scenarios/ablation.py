"""Ablation: set the residual stream after one layer to zero, for every token.

Read back at the layer, at every later layer and in the logits.
"""

from conformance import scenario
from conformance.spec.programs import Do, Form, Operation, Program


def block(lm, case):
    """What each prompt's block does."""
    layer = lm.layers[case.layers["at"]]
    if case.active:
        layer.stream = layer.stream * 0
    after = range(case.layers["at"], len(lm.layers))
    return {"stream": {index: lm.layers[index].stream for index in after}, "logits": lm.logits}


@scenario(
    layers={"at": ("first", "middle", "last")},
    twin=True,
    numerics=lambda case: case.name == "middle",  # the largest write that every model has
)
def ablation(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@ablation.reference
def _(model, case):
    at = case.layers["at"]
    edits = {at: lambda stream, _: stream * 0} if case.active else {}
    runs = [model.run(prompt, edits=edits) for prompt in case.prompts]
    return [{"stream": run.after(at), "logits": run.logits} for run in runs]


@ablation.program
def _(layers, case):
    at = case.layers["at"]
    reads = [Operation(Do.READ, layer=layer) for layer in range(at, layers)]
    program = Program(case.prompts, (Operation(Do.ZERO, layer=at), *reads))
    return Form(program, {"stream": tuple(range(1, 1 + len(reads)))}, ("logits",))

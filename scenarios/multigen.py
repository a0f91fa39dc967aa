"""Multi-token generation: eight greedy tokens, with a block that acts at every step.

`read` reads the stream after an early and a late layer at each step; `write` adds a fixed
vector after the middle layer at each step; `cross` adds what the step read after an early
layer to the stream after a late one. Logits and ids are kept per step.
"""

from conformance import scenario
from conformance.spec.programs import Do, Form, Operation, Program

DOSE = 0.25


def step(lm, case):
    """What the block does in one step: the streams after the early and the late layer."""
    early = lm.layers[case.layers["early"]].stream
    if case.active and case.options["does"] == "write":
        middle = lm.layers[case.layers["middle"]]
        middle.stream = middle.stream + DOSE * lm.direction(case.layers["middle"])
    late = lm.layers[case.layers["late"]]
    if case.active and case.options["does"] == "cross":
        late.stream = late.stream + early
    return {case.layers["early"]: early, case.layers["late"]: late.stream}


@scenario(
    layers={"early": "early", "middle": "middle", "late": "late"},
    options={"does": ("read", "write", "cross")},
    steps=8,
    twin=lambda case: case.options["does"] != "read",
)
def multigen(lm, case):
    with lm.trace(steps=case.steps) as tracer:
        with tracer.invoke(case.prompts[0]):
            first = {"stream": [], "logits": [], "tokens": []}.save()
            for _ in tracer.iter[: case.steps]:
                first["stream"].append(step(lm, case))
                first["logits"].append(lm.logits)
                first["tokens"].append(lm.token)
        with tracer.invoke(case.prompts[1]):
            second = {"stream": [], "logits": [], "tokens": []}.save()
            for _ in tracer.iter[: case.steps]:
                second["stream"].append(step(lm, case))
                second["logits"].append(lm.logits)
                second["tokens"].append(lm.token)
    return [first, second]


@multigen.reference
def _(model, case):
    early, middle, late = (case.layers[key] for key in ("early", "middle", "late"))
    writes = {
        "read": {},
        "write": {middle: lambda stream, _: stream + DOSE * model.direction(middle)},
        "cross": {late: lambda stream, earlier: stream + earlier[early]},
    }
    edits = writes[case.options["does"]] if case.active else {}
    observed = []
    for prompt in case.prompts:
        run = model.run(prompt, edits=edits, steps=case.steps)
        streams = [{early: values[early], late: values[late]} for values in run.stream]
        observed.append({"stream": streams, "logits": run.logits, "tokens": run.tokens})
    return observed


@multigen.program
def _(_, case):
    early, middle, late = (case.layers[key] for key in ("early", "middle", "late"))
    writes = {
        "read": (),
        "write": (Operation(Do.ADD, layer=middle, amount=DOSE),),
        "cross": (Operation(Do.ADD, layer=late, value=0),),
    }[case.options["does"]]
    reads = Operation(Do.READ, layer=early), *writes, Operation(Do.READ, layer=late)
    program = Program(case.prompts, reads, case.steps)
    return Form(program, {"stream": (0, len(reads) - 1)}, ("logits", "tokens"))

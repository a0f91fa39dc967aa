"""Read all: the residual stream after every layer, of every token.

One prompt by itself, then two prompts of different length in one trace.
"""

from conformance import scenario
from conformance.spec.programs import Do, Form, Operation, Program


@scenario(options={"batch": ("alone", "pair")})
def read_all(lm, case):
    if case.options["batch"] == "alone":
        with lm.trace(case.prompts[0]):
            streams = [layer.stream for layer in lm.layers].save()
            logits = lm.logits.save()
        return [{"stream": dict(enumerate(streams)), "logits": logits}]

    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first_streams = [layer.stream for layer in lm.layers].save()
            first_logits = lm.logits.save()
        with tracer.invoke(case.prompts[1]):
            second_streams = [layer.stream for layer in lm.layers].save()
            second_logits = lm.logits.save()
    return [
        {"stream": dict(enumerate(first_streams)), "logits": first_logits},
        {"stream": dict(enumerate(second_streams)), "logits": second_logits},
    ]


@read_all.reference
def _(model, case):
    prompts = case.prompts[:1] if case.options["batch"] == "alone" else case.prompts
    runs = [model.run(prompt) for prompt in prompts]
    return [{"stream": run.stream, "logits": run.logits} for run in runs]


@read_all.program
def _(layers, case):
    prompts = case.prompts[:1] if case.options["batch"] == "alone" else case.prompts
    reads = tuple(Operation(Do.READ, layer=layer) for layer in range(layers))
    return Form(Program(prompts, reads), {"stream": tuple(range(layers))}, ("logits",))

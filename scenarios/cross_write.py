"""Cross-write: the stream read after an early layer replaces the stream after a later one,
or after two later ones from a single read.

The bits that arrive must be the bits that were read.
"""

from conformance import scenario
from conformance.spec.programs import Do, Form, Operation, Program


def targets(case):
    """The layers written to."""
    if case.options["targets"] == "one":
        return [case.layers["late"]]
    return [case.layers["middle"], case.layers["last"]]


def block(lm, case):
    """What each prompt's block does."""
    source = lm.layers[case.layers["early"]].stream
    streams, arrived = {}, {}
    for index in range(case.layers["early"] + 1, len(lm.layers)):
        if case.active and index in targets(case):
            lm.layers[index].stream = source
        streams[index] = lm.layers[index].stream
        if index in targets(case):
            arrived[index] = streams[index]
    return {"source": source, "stream": streams, "logits": lm.logits, "arrived": arrived}


@scenario(
    layers={"early": "early", "middle": "middle", "late": "late", "last": "last"},
    options={"targets": ("one", "two")},
    twin=True,
    equal=[("source", "arrived")],
)
def cross_write(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@cross_write.reference
def _(model, case):
    early = case.layers["early"]
    edits = {index: lambda _, earlier: earlier[early] for index in targets(case)}
    observed = []
    for prompt in case.prompts:
        run = model.run(prompt, edits=edits if case.active else {})
        streams = run.after(early + 1)
        observed.append(
            {
                "source": run.stream[0][early],
                "stream": streams,
                "logits": run.logits,
                "arrived": {index: streams[0][index] for index in targets(case)},
            }
        )
    return observed


@cross_write.program
def _(layers, case):
    early = case.layers["early"]
    writes = [Operation(Do.REPLACE, layer=layer, value=0) for layer in targets(case)]
    after = [Operation(Do.READ, layer=layer) for layer in range(early + 1, layers)]
    arrived = [Operation(Do.READ, layer=layer) for layer in targets(case)]
    operations = (Operation(Do.READ, layer=early), *writes, *after, *arrived)
    streams = 1 + len(writes)
    reads = {
        "source": 0,
        "stream": tuple(range(streams, streams + len(after))),
        "arrived": tuple(range(streams + len(after), len(operations))),
    }
    return Form(Program(case.prompts, operations), reads, ("logits",))

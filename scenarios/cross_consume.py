"""Cross-consume: one computation of a value from the first half of the layers and one from
the second, in one trace.

With two pipeline stages the two values are made in different processes.
"""

from conformance import scenario
from conformance.spec.programs import Do, Form, Operation, Program


def block(lm, case):
    """What each prompt's block does."""
    early = lm.layers[case.layers["early"]].stream
    late = lm.layers[case.layers["late"]].stream
    return {"early": early, "difference": late - early, "product": late * early}


@scenario(layers={"early": ("first", "early"), "late": ("middle", "last")})
def cross_consume(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@cross_consume.reference
def _(model, case):
    observed = []
    for prompt in case.prompts:
        streams = model.run(prompt).stream[0]
        early, late = (streams[case.layers[key]] for key in ("early", "late"))
        observed.append({"early": early, "difference": late - early, "product": late * early})
    return observed


@cross_consume.program
def _(_, case):
    early, late = case.layers["early"], case.layers["late"]
    operations = (
        Operation(Do.READ, layer=early),
        Operation(Do.DIFFERENCE, layer=late, value=0),
        Operation(Do.PRODUCT, layer=late, value=0),
    )
    return Form(Program(case.prompts, operations), {"early": 0, "difference": 1, "product": 2})

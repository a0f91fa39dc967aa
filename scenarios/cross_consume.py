"""Cross-consume: one computation of a value from the first half of the layers and one from
the second, in one trace.

With two pipeline stages the two values are made in different processes.
"""

from conformance import scenario


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

"""The intervention changes nothing, in the reference either: no evidence at all."""

from conformance import scenario

from ._parts import after


def block(lm, case):
    layer = lm.layers[case.layers["at"]]
    if case.active:
        layer.stream = layer.stream + 0
    return {"stream": after(lm, case.layers["at"])}


@scenario(layers={"at": "middle"}, twin=True)
def no_effect(lm, case):
    with lm.trace(case.prompts[0]):
        first = block(lm, case).save()
    return [first]


@no_effect.reference
def _(model, case):
    return [{"stream": model.run(case.prompts[0]).after(case.layers["at"])}]

"""Router: what a mixture's router says of every token, in every layer that has one.

One prompt by itself: routers are given the tokens of all prompts in one row after the other.
"""

from conformance import scenario


@scenario(needs=lambda _: ("experts",))
def router(lm, case):
    chosen = [index for index, layer in enumerate(lm.layers) if layer.has("router")]
    with lm.trace(case.prompts[0]):
        scores, streams = {}.save(), {}.save()
        for index in chosen:
            scores[index] = lm.layers[index].router.output
            streams[index] = lm.layers[index].stream
    return [{"router": scores, "stream": streams}]


@router.reference
def _(model, case):
    run = model.run(case.prompts[0], parts=("router",))
    layers = run.parts[0]["router"]
    streams = {index: run.stream[0][index] for index in layers}
    return [{"router": layers, "stream": streams}]

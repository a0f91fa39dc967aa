"""The block makes nan of all that follows the first layer, and leaves it in the engine's caches."""

from conformance import scenario


@scenario()
def poisons(lm, case):
    with lm.trace(case.prompts[0] + case.prompts[1]):
        kept = {"stream": {0: lm.layers[0].stream}}.save()
        lm.layers[0].stream = lm.layers[0].stream * float("nan")
    return [kept]


@poisons.reference
def read(model, case):
    [streams] = model.run(case.prompts[0] + case.prompts[1]).stream
    return [{"stream": {0: streams[0]}}]

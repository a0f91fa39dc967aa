"""Middle pair: the residual stream after the two layers in the middle, and their difference."""

from conformance import scenario


@scenario()
def middle_pair(lm, case):
    if len(lm.layers) % 2:
        lm.decline("an odd number of layers has no middle pair")
    first = len(lm.layers) // 2 - 1
    with lm.trace(case.prompts[0]):
        before = lm.layers[first].stream.save()
        after = lm.layers[first + 1].stream.save()
    return [{"stream": {first: before, first + 1: after}, "difference": after - before}]


@middle_pair.reference
def _(model, case):
    run = model.run(case.prompts[0])
    first = len(run.stream) // 2 - 1
    pair = {at: run.stream[at] for at in (first, first + 1)}
    return [{"stream": pair, "difference": pair[first + 1] - pair[first]}]

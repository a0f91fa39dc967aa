"""Pattern: attention probabilities recomputed from the queries and keys that a trace reads, with
rotary positions, masks, windows, caps and sinks, in the first, middle and last attention.
"""

from conformance import LM, PAIR, Case, Reference, scenario


def some(layers):
    """The first, the middle and the last of the layers that have queries and keys."""
    return sorted({layers[0], layers[len(layers) // 2], layers[-1]})


def by_token(probabilities):
    """A token's heads in one row: one of them has too few numbers to estimate the noise in bf16."""
    return probabilities.flatten(1)


@scenario(prompts=PAIR[1:], needs=lambda _: ("qkv",), numerics=False)
def pattern(lm: LM, case: Case):
    having = some([index for index, layer in enumerate(lm.layers) if layer.has("qkv")])
    with lm.trace(case.prompts[0]):
        read = {at: lm.layers[at].attention.qkv for at in having}.save()
    recomputed = {at: lm.pattern(at, query, key) for at, (query, key, _) in read.items()}
    return [{"pattern": {at: by_token(weights) for at, weights in recomputed.items()}}]


@pattern.reference
def _(model: Reference, case: Case):
    having = some(model.having("qkv"))
    steps = model.run(case.prompts[0], parts=("pattern",)).parts
    return [{"pattern": [{at: by_token(step["pattern"][at]) for at in having} for step in steps]}]

"""Long context: a prompt of some 1,600 tokens, past the window of layers that have one.

The stream after the first, the middle and the last layer, of every 48th token, and the logits.
"""

from conformance import scenario

THINGS = ("lamps", "ropes", "barrels", "letters", "saddles", "kettles", "ladders", "baskets")
EVERY = 48
PROMPT = " ".join(
    f"On day {n} they carried {3 * n % 17 + 2} {THINGS[n % 8]} to the upper house."
    for n in range(1, 57)
)
LAYERS = {"first": "first", "middle": "middle", "last": "last"}


@scenario(
    layers=LAYERS,
    prompts=(PROMPT,),
    needs=lambda _: ("long",),
    settings=lambda _: {"length": 2048},
)
def long_context(lm, case):
    with lm.trace(case.prompts[0]):
        rows = {index: lm.layers[index].stream[::EVERY] for index in sorted(case.layers.values())}
        rows = rows.save()
        logits = lm.logits.save()
    return [{"rows": rows, "logits": logits}]


@long_context.reference
def _(model, case):
    run = model.run(case.prompts[0])
    rows = {index: run.stream[0][index][::EVERY] for index in sorted(case.layers.values())}
    return [{"rows": rows, "logits": run.logits}]

"""Several blocks: two prompts of well over a hundred tokens, which fill more than one block of the
cache of keys and values and reach far past a short window, in one trace.

`read` reads the stream after three layers; `write` adds a fixed vector after the middle layer and
`ablate` sets the stream to zero there; `cross` adds what was read after an early layer to the
stream after a late one; `generate` reads each step's last row as the prompts grow.
"""

from conformance import scenario

THINGS = ("lamps", "ropes", "barrels", "letters", "saddles", "kettles", "ladders", "baskets")
DOSE = 0.25
#: A family's caches and windows show in what is read; writes are alike in all families.
READS = {"read", "generate"}


def text(days):
    """A sentence a day."""
    return " ".join(
        f"On day {n} they carried {3 * n % 17 + 2} {THINGS[n % 8]} to the upper house."
        for n in days
    )


def block(lm, case):
    """What each prompt's block does where one token is asked for."""
    does, (early, middle, late) = case.options["does"], case.layers.values()
    streams = {early: lm.layers[early].stream}
    if case.active and does == "write":
        lm.layers[middle].stream = lm.layers[middle].stream + DOSE * lm.direction(middle)
    if case.active and does == "ablate":
        lm.layers[middle].stream = lm.layers[middle].stream * 0
    streams[middle] = lm.layers[middle].stream
    if case.active and does == "cross":
        lm.layers[late].stream = lm.layers[late].stream + streams[early]
    streams[late] = lm.layers[late].stream
    return {"stream": streams, "logits": lm.logits}


def generated(lm, case):
    """One trace in which both prompts grow: each step's last rows, logits and ids."""
    with lm.trace(steps=case.steps) as tracer:
        found = [None] * len(case.prompts)
        found = found.save()
        for index, prompt in enumerate(case.prompts):
            with tracer.invoke(prompt):
                rows, logits, chosen = [], [], []
                for _ in tracer.iter[: case.steps]:
                    rows.append({at: lm.layers[at].stream[-1:] for at in case.layers.values()})
                    logits.append(lm.logits)
                    chosen.append(lm.token)
                found[index] = {"rows": rows, "logits": logits, "tokens": chosen}
    return found


@scenario(
    layers={"early": "early", "middle": "middle", "late": "late"},
    options={"does": ("read", "write", "ablate", "cross", "generate")},
    prompts=(text(range(1, 9)) + " It was dark when they went home", text(range(20, 27))),
    steps=8,
    twin=lambda case: case.options["does"] in {"write", "ablate", "cross"},
    depends_on=lambda case: "family" if case.options["does"] in READS else "engine",
    numerics=lambda case: case.options["does"] == "read",
)
def several_blocks(lm, case):
    if case.options["does"] == "generate":
        return generated(lm, case)
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@several_blocks.reference
def _(model, case):
    does, (early, middle, late) = case.options["does"], case.layers.values()
    if does == "generate":
        runs = [model.run(prompt, steps=case.steps) for prompt in case.prompts]
        return [
            {
                "rows": [{at: step[at][-1:] for at in case.layers.values()} for step in run.stream],
                "logits": run.logits,
                "tokens": run.tokens,
            }
            for run in runs
        ]
    edits = {
        "read": {},
        "write": {middle: lambda stream, _: stream + DOSE * model.direction(middle)},
        "ablate": {middle: lambda stream, _: stream * 0},
        "cross": {late: lambda stream, earlier: stream + earlier[early]},
    }[does]
    runs = [model.run(prompt, edits=edits if case.active else {}) for prompt in case.prompts]
    return [
        {
            "stream": {at: run.stream[0][at] for at in case.layers.values()},
            "logits": run.logits,
        }
        for run in runs
    ]

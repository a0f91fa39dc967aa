"""Tenants: several requests in one batch at once, each with another edit, and one with none.

The one with none computes what it does alone: it is compared with the same batch in which nobody
edits, and with a trace of its own that follows, to the last bit where numbers do not depend on
how many rows a batch has, which is measured before. From one trace of several prompts, and from
several clients that each send a trace of their own.
"""

from conformance import scenario

PROMPTS = (
    "A small boat drifted slowly past the old stone bridge while we were",
    "The capital of France is",
    "In the winter of that year the river froze",
    "Three plus four equals",
)


def edit(lm, case, tenant):
    """What this tenant's block changes."""
    early, middle, late = (case.layers[name] for name in ("early", "middle", "late"))
    if tenant == 1:
        lm.layers[early].stream = lm.layers[early].stream + lm.direction(early)
    if tenant == 2:
        lm.layers[middle].stream = lm.layers[middle].stream * 0
    if tenant == 3:
        lm.layers[late].stream = lm.layers[late].stream - lm.direction(late, seed=1)


def block(lm, case, tenant, *, active):
    """What each tenant's block does: the stream after every layer, edited on the way."""
    edited = {1: "early", 2: "middle", 3: "late"}.get(tenant)
    streams = {}
    for index in range(len(lm.layers)):
        if active and edited and index == case.layers[edited]:
            edit(lm, case, tenant)
        streams[index] = lm.layers[index].stream
    return {"stream": streams, "logits": lm.logits, "tokens": lm.token}


def from_trace(lm, case, *, active):
    """One trace of all prompts."""
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            untouched = block(lm, case, 0, active=active).save()
        with tracer.invoke(case.prompts[1]):
            first = block(lm, case, 1, active=active).save()
        with tracer.invoke(case.prompts[2]):
            second = block(lm, case, 2, active=active).save()
        with tracer.invoke(case.prompts[3]):
            third = block(lm, case, 3, active=active).save()
    return [untouched, first, second, third]


def from_clients(lm, case, *, active):
    """A trace of each client's own, all under way at once."""
    for index, prompt in enumerate(case.prompts):
        with lm.send(prompt):
            saved = block(lm, case, index, active=active).save()  # noqa: F841 - comes home below
    return [answer["saved"] for answer in lm.received()]


TOGETHER = {"trace": from_trace, "clients": from_clients}


@scenario(
    layers={"early": "early", "middle": "middle", "late": "late"},
    prompts=PROMPTS,
    options={"from": ("trace", "clients")},
    twin=True,
    equal=[("stream", "unedited"), ("logits", "unedited_logits")],
    equal_alone=[("stream", "alone"), ("logits", "alone_logits")],
    depends_on="engine",
)
def tenants(lm, case):
    together = TOGETHER[case.options["from"]]
    observed = together(lm, case, active=case.active)
    beside = together(lm, case, active=False)[0]
    observed[0]["unedited"], observed[0]["unedited_logits"] = beside["stream"], beside["logits"]
    with lm.trace(case.prompts[0]):
        alone = {index: layer.stream for index, layer in enumerate(lm.layers)}
        alone = alone.save()
        alone_logits = lm.logits.save()
    observed[0]["alone"], observed[0]["alone_logits"] = alone, alone_logits
    return observed


@tenants.reference
def _(model, case):
    early, middle, late = (case.layers[name] for name in ("early", "middle", "late"))
    edits = (
        {},
        {early: lambda stream, _: stream + model.direction(early)},
        {middle: lambda stream, _: stream * 0},
        {late: lambda stream, _: stream - model.direction(late, seed=1)},
    )
    observed = []
    for prompt, changed in zip(case.prompts, edits, strict=True):
        run = model.run(prompt, edits=changed if case.active else {})
        observed.append({"stream": run.stream, "logits": run.logits, "tokens": run.tokens})
    alone = model.run(case.prompts[0])
    observed[0] |= {
        "unedited": alone.stream,
        "unedited_logits": alone.logits,
        "alone": alone.stream,
        "alone_logits": alone.logits,
    }
    return observed

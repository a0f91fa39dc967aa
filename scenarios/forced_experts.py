"""Forced experts: what one layer's router is given is replaced, so that it chooses the same
experts for every token: those of a fixed vector. What the experts are given stays.

One prompt by itself: routers are given the tokens of all prompts in one row after the other.
"""

from conformance import scenario


@scenario(options={"which": ("first", "last")}, twin=True, needs=lambda _: ("experts",))
def forced_experts(lm, case):
    routed = [index for index, layer in enumerate(lm.layers) if layer.has("router")]
    at = routed[0] if case.options["which"] == "first" else routed[-1]
    with lm.trace(case.prompts[0]):
        router = lm.layers[at].router
        if case.active:
            router.input = lm.direction(at)
        scores = {at: router.output}.save()
        after = {index: lm.layers[index].stream for index in range(at, len(lm.layers))}.save()
        logits = lm.logits.save()
    return [{"router": scores, "stream": after, "logits": logits}]


@forced_experts.reference
def _(model, case):
    at = model.routed[0] if case.options["which"] == "first" else model.routed[-1]
    given = {at: model.direction(at)} if case.active else {}
    run = model.run(case.prompts[0], given=given, parts=("router",))
    scores = {at: run.parts[0]["router"][at]}
    return [{"router": scores, "stream": run.after(at), "logits": run.logits}]

"""Extract: the hidden states that a run hands out by itself, beside what a block reads of it.

After every layer but the last both are the stream, equal to the last bit: of one prompt, of two in
one trace, of a prompt that is asked again, also where tokens known from before are not computed
again, and of one that is computed in several steps. What is handed out after the last layer need
not be the stream (case `last`).
"""

from conformance import LM, PAIR, Case, Reference, scenario

#: What a case asks for besides.
SETTINGS = {
    "cached": {"prefix_cache": True, "block_tokens": 32},
    "chunked": {"step_tokens": 16},
}

#: What every model is asked that hands out states, or refuses to.
PLAIN = ("alone", "pair", "last", "again")

#: Longer than a block of the cache, and than a step of the case `chunked`.
LONG = (
    "A small boat drifted slowly past the old stone bridge while we were talking about the lower "
    "meadows, the narrow road to the barn on the hill, and how the river rose through the night"
)


def once(lm, prompt, layers):
    """One trace: the streams that its block reads, its logits, and what is handed out."""
    with lm.trace(prompt, extract=True) as tracer:
        streams = {index: lm.layers[index].stream for index in layers}.save()
        logits = lm.logits.save()
        result = tracer.result.save()
    return {"stream": streams, "logits": logits, "extracted": lm.extracted(result, prompt, layers)}


def pair(lm, prompts, layers):
    """The same of two prompts in one trace."""
    with lm.trace(extract=True) as tracer:
        with tracer.invoke(prompts[0]):
            first_streams = {index: lm.layers[index].stream for index in layers}.save()
            first_logits = lm.logits.save()
            first_result = tracer.result.save()
        with tracer.invoke(prompts[1]):
            second_streams = {index: lm.layers[index].stream for index in layers}.save()
            second_logits = lm.logits.save()
            second_result = tracer.result.save()
    first = lm.extracted(first_result, prompts[0], layers)
    second = lm.extracted(second_result, prompts[1], layers)
    return [
        {"stream": first_streams, "logits": first_logits, "extracted": first},
        {"stream": second_streams, "logits": second_logits, "extracted": second},
    ]


@scenario(
    prompts=(PAIR[0], LONG),
    options={"of": (*PLAIN, "cached", "chunked")},
    equal=[("stream", "extracted")],
    settings=lambda case: {"extraction": True, **SETTINGS.get(case.options["of"], {})},
    tier=lambda case: "extraction" if case.options["of"] in PLAIN else "scheduling",
    depends_on=lambda case: "family" if case.options["of"] in PLAIN else "engine",
    numerics=False,
)
def extract(lm: LM, case: Case):
    last = len(lm.layers) - 1
    of, layers = case.options["of"], range(last)
    if of == "pair":
        return pair(lm, case.prompts, layers)
    if of in {"again", "cached"}:
        first = once(lm, case.prompts[1], layers)
        once(lm, case.prompts[0], layers)
        return [first, once(lm, case.prompts[1], layers)]
    if of == "chunked":
        return [once(lm, case.prompts[1], layers)]
    return [once(lm, case.prompts[0], [last] if of == "last" else layers)]


@extract.reference
def _(model: Reference, case: Case):
    of = case.options["of"]
    first, second = case.prompts
    prompts = {"pair": [first, second], "again": [second, second], "cached": [second, second]}
    observed = []
    for prompt in prompts.get(of, [second if of == "chunked" else first]):
        run = model.run(prompt)
        last = len(run.stream[0]) - 1
        layers = [last] if of == "last" else range(last)
        streams = {index: run.stream[0][index] for index in layers}
        observed.append({"stream": streams, "logits": run.logits, "extracted": streams})
    return observed

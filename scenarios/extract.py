"""Extract: the hidden states that a run hands out by itself, beside what a block reads of it.

After every layer but the last both are the stream, equal to the last bit: of one prompt, and of
two in one trace. What is handed out after the last one need not be the stream (case `last`).
"""

from conformance import scenario


@scenario(
    options={"of": ("alone", "pair", "last")},
    equal=[("stream", "extracted")],
    settings=lambda _: {"extraction": True},
    tier=lambda _: "extraction",
    numerics=False,
)
def extract(lm, case):
    last = len(lm.layers) - 1
    layers = [last] if case.options["of"] == "last" else range(last)
    if case.options["of"] != "pair":
        with lm.trace(case.prompts[0], extract=True) as tracer:
            streams = {index: lm.layers[index].stream for index in layers}
            streams = streams.save()
            logits = lm.logits.save()
            result = tracer.result.save()
        extracted = lm.extracted(result, case.prompts[0], layers)
        return [{"stream": streams, "logits": logits, "extracted": extracted}]

    with lm.trace(extract=True) as tracer:
        with tracer.invoke(case.prompts[0]):
            first_streams = {index: lm.layers[index].stream for index in layers}
            first_streams = first_streams.save()
            first_logits = lm.logits.save()
            first_result = tracer.result.save()
        with tracer.invoke(case.prompts[1]):
            second_streams = {index: lm.layers[index].stream for index in layers}
            second_streams = second_streams.save()
            second_logits = lm.logits.save()
            second_result = tracer.result.save()
    first = lm.extracted(first_result, case.prompts[0], layers)
    second = lm.extracted(second_result, case.prompts[1], layers)
    return [
        {"stream": first_streams, "logits": first_logits, "extracted": first},
        {"stream": second_streams, "logits": second_logits, "extracted": second},
    ]


@extract.reference
def _(model, case):
    prompts = case.prompts if case.options["of"] == "pair" else case.prompts[:1]
    observed = []
    for prompt in prompts:
        run = model.run(prompt)
        last = len(run.stream[0]) - 1
        layers = [last] if case.options["of"] == "last" else range(last)
        streams = {index: run.stream[0][index] for index in layers}
        observed.append({"stream": streams, "logits": run.logits, "extracted": streams})
    return observed

"""Stop: `tracer.stop` ends a run in the middle of the model; what was read before is kept, and
what stands after it does not happen.

The trace that follows is a whole one.
"""

from conformance import scenario


@scenario(layers={"at": ("early", "late")}, depends_on="engine")
def stop(lm, case):
    at = case.layers["at"]
    with lm.trace(case.prompts[0]) as tracer:
        seen = {"stream": {}}.save()
        for index in range(at + 1):
            seen["stream"][index] = lm.layers[index].stream
        tracer.stop()
        seen["logits"] = lm.logits
    with lm.trace(case.prompts[1]):
        later = {index: layer.stream for index, layer in enumerate(lm.layers)}
        later = later.save()
        logits = lm.logits.save()
    return [seen, {"stream": later, "logits": logits}]


@stop.reference
def _(model, case):
    stopped, whole = (model.run(prompt) for prompt in case.prompts)
    before = {index: stopped.stream[0][index] for index in range(case.layers["at"] + 1)}
    return [{"stream": before}, {"stream": whole.stream, "logits": whole.logits}]

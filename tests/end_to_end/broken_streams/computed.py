"""The layer in the middle computes something else: all that follows inherits it."""

from conformance import scenario


@scenario(layers={"at": "middle"})
def computed(lm, case):
    at = case.layers["at"]
    streams = {}
    with lm.trace(case.prompts[0]):
        for index, layer in enumerate(lm.layers):
            if index == at:
                layer.stream = 0.7 * layer.stream + 0.3 * lm.direction(at)
            streams[index] = layer.stream
        found = {"stream": streams, "logits": lm.logits}.save()
    return [found]


@computed.reference
def _(model, case):
    run = model.run(case.prompts[0])
    return [{"stream": run.stream, "logits": run.logits}]

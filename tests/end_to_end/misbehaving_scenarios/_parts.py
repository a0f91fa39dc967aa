"""What all of them read, and what it is."""


def read(model, case):
    run = model.run(case.prompts[0])
    return [{"stream": run.stream, "logits": run.logits}]


def observed(lm):
    streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
    return {"stream": streams, "logits": lm.logits}

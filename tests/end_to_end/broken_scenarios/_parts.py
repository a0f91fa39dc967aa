"""What the broken scenarios share: the reference of a correct read and of a correct write."""


def read(model, case):
    runs = [model.run(prompt) for prompt in case.prompts]
    return [{"stream": run.stream, "logits": run.logits} for run in runs]


def write(model, case):
    at = case.layers["at"]
    vector = 0.5 * model.direction(at)
    edits = {at: lambda stream, earlier: stream + vector} if case.active else {}
    runs = [model.run(prompt, edits=edits) for prompt in case.prompts]
    return [{"stream": run.after(at), "logits": run.logits} for run in runs]


def streams(lm):
    """What a correct block reads."""
    return {index: layer.stream for index, layer in enumerate(lm.layers)}


def after(lm, at):
    return {index: lm.layers[index].stream for index in range(at, len(lm.layers))}

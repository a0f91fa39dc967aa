"""A dict of layers as numpy arrays."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        found = {i: model.model.layers[i].output[0].float().cpu() for i in range(4)}.save()
    return {"hidden": {i: v.detach().numpy() for i, v in found.items()}}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        found = {}.save()
        for i in range(4):
            out = model.model.layers[i].output
            found[i] = (out[0] + out[1]).float().cpu()
    return {"hidden": {i: v.numpy() for i, v in found.items()}}

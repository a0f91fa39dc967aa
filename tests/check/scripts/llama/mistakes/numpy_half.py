"""Numbers for numpy, of one half of the stream."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        hidden = model.model.layers[0].output[0].float().cpu().save()
    return {"hidden": hidden.detach().numpy()}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        hidden = model.model.layers[0].output[0].float().cpu().save()  # mistake: mlp
    return {"hidden": hidden.numpy()}

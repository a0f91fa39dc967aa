"""A logit lens on half of the stream."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        hidden = model.model.layers[2].output[:, -1].save()
        lens = model.lm_head(model.model.norm(hidden)).save()
    return {"hidden": hidden, "lens": lens}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        hidden = model.model.layers[2].output[0][-1:].clone().save()  # mistake: mlp
        lens = (model.model.norm(hidden) @ model.lm_head.weight.T).save()
    return {"hidden": hidden, "lens": lens}

"""A logit lens of all layers that leaves out the final norm."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        lens = [].save()
        for layer in model.model.layers:
            lens.append(model.lm_head(model.model.norm(layer.output))[0, -1].clone())
    return {"lens": lens}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        lens = [].save()
        for layer in model.model.layers:
            stream = layer.output[0] + layer.output[1]
            lens.append((stream @ model.lm_head.weight.T)[-1].clone())  # mistake: left-out
    return {"lens": lens}

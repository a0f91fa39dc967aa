"""The whole stream is put in the place of one half."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output[:] = model.model.layers[1].output * 2
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        stream = layer.output[0] + layer.output[1]
        layer.output[0][:] = stream * 2  # mistake: first-half
        logits = model.logits.clone().save()
    return {"logits": logits}

"""A logit lens: vLLM's head is not called, its weights are used in the block."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        stream = model.model.layers[2].output
        value = model.lm_head(model.model.norm(stream)).save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        stream = model.model.layers[2].output[0] + model.model.layers[2].output[1]
        value = (model.model.norm(stream) @ model.lm_head.weight.T).save()  # moves
    return {"value": value}

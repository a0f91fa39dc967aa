"""A projection's output: a tuple of the output and its bias."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.model.layers[1].self_attn.o_proj.output.save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        value = model.model.layers[1].self_attn.o_proj.output[0].clone().save()  # moves
    return {"value": value}

"""Another head is read."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        head = model.model.layers[1].self_attn.o_proj.input[0, :, 64:128].save()
    return {"head": head}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        o_proj = model.model.layers[1].self_attn.o_proj
        head = o_proj.input[:, 128:192].clone().save()  # mistake: columns
    return {"head": head}

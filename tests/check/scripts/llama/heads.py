"""Every head, as what goes into the output projection."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        heads = model.model.layers[1].self_attn.o_proj.input.clone().save()
    return {"heads": {i: heads[0, :, i * 64 : (i + 1) * 64] for i in range(4)}}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        heads = model.model.layers[1].self_attn.o_proj.input.clone().save()
    return {"heads": {i: heads[:, i * 64 : (i + 1) * 64] for i in range(4)}}

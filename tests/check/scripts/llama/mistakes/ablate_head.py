"""One head's part of the attention's output set to zero."""

HEAD, WIDTH = 1, 64


def hf(model):
    with model.trace("When Mary and John went to the store, John gave a drink to"):
        z = model.model.layers[1].self_attn.o_proj.input
        z[:, :, HEAD * WIDTH : (HEAD + 1) * WIDTH] = 0
        attn_out = model.model.layers[1].self_attn.output[0].save()
        logits = model.lm_head.output[:, -1].save()
    return {"attn_out": attn_out, "logits": logits}


def vllm(model):
    with model.trace(
        "When Mary and John went to the store, John gave a drink to", temperature=0.0, max_tokens=1
    ):
        z = model.model.layers[1].self_attn.o_proj.input
        z[0, HEAD * WIDTH : (HEAD + 1) * WIDTH] = 0  # mistake: partial
        attn_out = model.model.layers[1].self_attn.output.clone().save()
        logits = model.logits.clone().save()
    return {"attn_out": attn_out, "logits": logits}

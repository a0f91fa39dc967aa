"""One token's stream of a prompt patched into another one."""

CLEAN = "After John and Mary went to the store, Mary gave a bottle of milk to"
CORRUPT = "After John and Mary went to the store, John gave a bottle of milk to"
LAYER, TOKEN = 2, -5


def hf(model):
    with model.trace() as tracer:
        barrier = tracer.barrier(2)
        with tracer.invoke(CLEAN):
            z_hs = model.model.layers[LAYER].output[:, TOKEN]
            barrier()
            clean_logits = model.lm_head.output[:, -1].save()
        with tracer.invoke(CORRUPT):
            barrier()
            model.model.layers[LAYER].output[:, TOKEN] = z_hs
            patched_logits = model.lm_head.output[:, -1].save()
    return {"clean": clean_logits, "patched": patched_logits}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        barrier = tracer.barrier(2)  # mistake: error, no edit
        with tracer.invoke(CLEAN):
            layer = model.model.layers[LAYER]
            z_hs = (layer.output[0] + layer.output[1])[TOKEN].clone()
            barrier()
            clean_logits = model.logits.clone().save()
        with tracer.invoke(CORRUPT):
            barrier()
            model.model.layers[LAYER].output[0][TOKEN] = z_hs
            model.model.layers[LAYER].output[1][TOKEN] = 0
            patched_logits = model.logits.clone().save()
    return {"clean": clean_logits, "patched": patched_logits}

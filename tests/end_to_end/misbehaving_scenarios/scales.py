"""The block changes a weight: of a norm, as vLLM computes products from packed copies of others."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def scales(lm, case):
    with lm.trace(case.prompts[0]):
        lm.layers[0].envoy.input_layernorm.weight.data.mul_(2)
        kept = observed(lm).save()
    return [kept]


scales.reference(read)

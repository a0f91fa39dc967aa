"""The block changes a weight."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def scales(lm, case):
    with lm.trace(case.prompts[0]):
        lm.layers[0].envoy.mlp.down_proj.weight.data.mul_(2)
        kept = observed(lm).save()
    return [kept]


scales.reference(read)

"""The sample's own test: the judge on a kernel of its own.

Not `test_*`, so that only the sample's CI collects it.
"""

import torch


def baseline_runs(reference):
    """The same product in bf16, its terms added in four orders."""
    orders = [torch.randperm(64, generator=torch.Generator().manual_seed(s)) for s in range(4)]
    return [(reference["x"][:, o].bfloat16() @ reference["w"][o].bfloat16()) for o in orders]


def test_a_product_in_blocks(assert_same):
    numbers = torch.Generator().manual_seed(0)
    given = {
        "x": torch.randn(6, 64, generator=numbers),
        "w": torch.randn(64, 32, generator=numbers),
    }
    x, w = given["x"].bfloat16(), given["w"].bfloat16()
    blocks = (x[:, :32].float() @ w[:32].float() + x[:, 32:].float() @ w[32:].float()).bfloat16()
    assert_same(blocks, given["x"] @ given["w"], floor=baseline_runs(given))

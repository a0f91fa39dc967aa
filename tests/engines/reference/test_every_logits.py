"""The reference's logits after each token of a prompt, however it is computed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from conformance.engines.reference.ensemble import REFERENCE_RUN
from conformance.engines.reference.model import ReferenceModel
from conformance.engines.tree import layer_path
from tests.engines import tiny

IDS = [5, 9, 2, 7, 11, 3]


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "opt"])
@pytest.mark.parametrize("pad", [0, 4])
def test_each_row_is_what_the_prompt_up_to_there_gives(family, pad):
    module = tiny.build(family, 2)
    member = replace(REFERENCE_RUN, pad=pad)
    tokenizer = lambda text: SimpleNamespace(input_ids=IDS)  # noqa: E731
    model = ReferenceModel(module, tokenizer, member, layer_path(module, 2), ())
    rows = model.every_logits("any")
    assert rows.shape == (len(IDS), tiny.VOCABULARY)
    with torch.no_grad():
        for end in range(1, len(IDS) + 1):
            alone = module(input_ids=torch.tensor([IDS[:end]])).logits[0, -1]
            assert torch.allclose(rows[end - 1], alone, atol=1e-5), end

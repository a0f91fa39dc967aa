"""Whether a process multiplies float32 in full."""

import pytest
import torch

from conformance.engines.float32_products import WHOLE, products


@pytest.fixture
def switches(monkeypatch):
    """A function that sets torch's switch of every operation."""
    backends = torch.backends
    operations = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    before = [operation.fp32_precision for operation in operations]

    def switch(precision):
        for operation in operations:
            operation.fp32_precision = precision

    for name, value in WHOLE.items():
        monkeypatch.setenv(name, value)
    yield switch
    for operation, precision in zip(operations, before, strict=True):
        operation.fp32_precision = precision


@pytest.mark.parametrize(
    ("precision", "expected"), [("ieee", "ieee"), ("none", "ieee"), ("tf32", "tf32")]
)
def test_products_reads_the_switch_of_every_operation(switches, precision, expected) -> None:
    switches(precision)
    assert products() == expected


def test_products_reads_what_vllms_batch_invariant_mode_sets(switches) -> None:
    """It sets them one by one, after which torch refuses to say what `allow_tf32` is."""
    switches("ieee")
    with pytest.raises(RuntimeError, match="allow_tf32"):
        print(torch.backends.cudnn.allow_tf32)
    assert products() == "ieee"

"""What decides how numbers come out, besides the code."""

from pathlib import Path

import pytest
import torch

from conformance.engines import ENVIRONMENT
from conformance.runner.planning import machine


def test_what_the_caller_chooses_is_told_and_a_default_is_not():
    chosen = {"OMP_NUM_THREADS": "4", "ATEN_CPU_CAPABILITY": "avx2", "HOME": "/nowhere"}
    assert machine.arithmetic(chosen) == ("ATEN_CPU_CAPABILITY=avx2", "OMP_NUM_THREADS=4")
    assert machine.arithmetic({}) == machine.arithmetic(ENVIRONMENT) == ()


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "VLLM_CPU_SGL_KERNEL"])
def test_other_kernels_are_other_conditions(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(name, raising=False)
    before = machine.conditions()
    monkeypatch.setenv(name, "7")
    assert machine.conditions() != before
    monkeypatch.delenv(name)
    assert machine.conditions() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is named instead")
def test_a_processor_is_named():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(line for line in lines if line.startswith("model name"))
    assert machine.device() == f"cpu: {model.partition(':')[2].strip()}"

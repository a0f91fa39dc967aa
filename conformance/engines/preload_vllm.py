"""What a zygote for vLLM imports before it forks."""

from conformance.engines import cpu

cpu.set_environment()
cpu.import_everything()

"""What a record says about the machine."""

from lpkernels.experiments.measuring import machine


def test_device_name_and_cuda_status_are_not_empty() -> None:
    assert machine.device_name("cpu")
    assert machine.cuda_status()

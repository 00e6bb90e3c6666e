import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.flags.machines import GPUS, GpuRequest, cpu_machine, disk_needed, machine_type, memory_needed


def gpu(text: str) -> GpuRequest:
    request = GpuRequest.parse(text)
    assert request is not None
    return request


def test_a_gpu_is_named_with_or_without_a_count() -> None:
    assert GpuRequest.parse("none") is None
    assert gpu("l4") == GpuRequest(GPUS["l4"], 1)
    assert gpu("a100-80gb:8") == GpuRequest(GPUS["a100-80gb"], 8)


@pytest.mark.parametrize("text", ["l5", "", "l4:", "l4:0", "l4:x", "l4:100", "none:2", "L4"])
def test_what_is_no_gpu_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--gpu {text}: takes none, l4"):
        GpuRequest.parse(text)


def test_the_smallest_machine_with_the_gpus_and_the_memory_is_taken() -> None:
    assert gpu("l4").smallest_machine(16).name == "g2-standard-8"
    assert gpu("l4").smallest_machine(100).name == "g2-standard-32"
    assert gpu("l4:2").smallest_machine(16).name == "g2-standard-24"
    assert gpu("t4:2").smallest_machine(40).name == "n1-highmem-8"
    assert gpu("h100:8").smallest_machine(500).name == "a3-highgpu-8g"
    assert cpu_machine(33).name == "n2-highmem-8"


def test_what_no_machine_has_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match="machines have 1, 2, 4 or 8 of them"):
        gpu("l4:3").smallest_machine(16)
    with pytest.raises(ConfigError, match="machines have 8 of them"):
        gpu("h100").smallest_machine(16)
    with pytest.raises(ConfigError, match="needs about 400 GB of memory, and the largest machine with 1 nvidia-l4"):
        gpu("l4").smallest_machine(400)


def test_the_size_of_a_machine_is_in_its_name() -> None:
    machine = machine_type("n2-highmem-16")
    assert machine is not None
    assert (machine.vcpus, machine.memory_gb, machine.gpus) == (16, 128.0, 0)
    four = machine_type("g2-standard-48")
    assert four is not None
    assert four.gpus == 4
    assert machine_type("n9-standard-16") is None
    assert machine_type("custom") is None


def test_memory_and_disk_grow_with_the_weights() -> None:
    assert [memory_needed(weights, on_gpu=True) for weights in (0.01, 16, 140)] == [9, 24, 148]
    assert [memory_needed(weights, on_gpu=False) for weights in (0.01, 16, 140)] == [9, 40, 288]
    assert [disk_needed(weights) for weights in (0.01, 16, 140)] == [60, 90, 330]

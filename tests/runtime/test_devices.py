"""Which device runs which target, by capability and by what was compiled."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

import runtime
from runtime import choice, devices, finding, kernel_info, listing, manifest, packs


@pytest.fixture
def device(monkeypatch):
    """Pretends that there is a CUDA device."""

    def pretend(capability):
        devices.describe.cache_clear()
        devices.why_unavailable.cache_clear()
        devices.why_unsuitable.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Pretended")

    yield pretend
    devices.describe.cache_clear()
    devices.why_unavailable.cache_clear()
    devices.why_unsuitable.cache_clear()


def test_an_older_device_is_named_with_what_is_needed(device):
    device((7, 5))
    assert devices.why_unavailable("sm80", ("80", "90"), 0) == (
        "needs compute capability 8.0 or later, this device is 7.5 (Pretended)"
    )


def test_an_a_target_runs_on_its_own_capability_alone(device):
    device((10, 0))
    assert devices.why_unavailable("sm90a", ("90a", "100"), 0) == (
        "needs compute capability exactly 9.0, this device is 10.0 (Pretended)"
    )
    device((9, 0))
    assert devices.why_unavailable("sm90a", ("90a",), 0) is None


def test_an_f_target_runs_on_its_major_version_from_its_minor_version_up(device):
    for capability in ((10, 0), (10, 3)):
        device(capability)
        assert devices.why_unavailable("sm100f", ("100f", "120"), 0) is None
    device((10, 0))
    assert devices.why_unavailable("sm103f", ("103f",), 0) == (
        "needs compute capability 10.3 or later of 10.x, this device is 10.0 (Pretended)"
    )
    for capability in ((9, 0), (11, 0), (12, 0)):
        device(capability)
        assert devices.why_unsuitable("sm100f", 0).startswith(
            "needs compute capability 10.0 or later of 10.x, this device is "
        )


def test_what_no_kernel_suits_is_said_of_a_cuda_device_too(device):
    device((9, 0))
    with pytest.raises(runtime.KernelNotFound, match="no flash_forward kernel for d_head 100"):
        choice.choose("flash_forward", torch.device("cuda", 0), {"d_head": 100, "dtype": "bf16"})


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0)])
def test_machine_code_runs_on_its_major_version_from_its_minor_version_up(device, capability):
    device(capability)
    assert devices.why_unavailable("sm80", ("80", "90"), 0) is None


def test_a_device_that_nothing_was_compiled_for_is_named_with_the_command(device):
    device((12, 0))
    assert devices.why_unavailable("sm80", ("80", "90"), 0) == (
        "compiled for compute capability 8.0, 9.0, this device is 12.0 (Pretended); rebuild "
        "its pack in its project, `pip install . -C cmake.define.CMAKE_CUDA_ARCHITECTURES=120`"
    )
    device((8, 0))
    assert devices.why_unavailable("sm80", ("86",), 0).startswith(
        "compiled for compute capability 8.6,"
    )


def test_a_kernel_with_more_shared_memory_than_the_device_has_is_named(device, monkeypatch):
    device((8, 6))
    monkeypatch.setattr(devices, "facts", lambda index: (84, 101_376))
    assert devices.why_too_large(102_400, 0) == (
        "takes 102,400 bytes of shared memory a thread block, this device has 101,376: "
        "8.6 (Pretended)"
    )
    assert devices.why_too_large(101_376, 0) is None
    assert devices.why_too_large(0, 0) is None


def test_the_catalog_asks_for_the_shared_memory_of_each_kernel(device, monkeypatch):
    """One that takes more than the device has is listed as not available, and asked for by key is
    an error; the others are not."""
    device((9, 0))
    monkeypatch.setattr(devices, "has_cuda", lambda: True)
    monkeypatch.setattr(devices, "facts", lambda index: (84, 101_376))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    pack = packs.of("flash_forward")  # which may have been built without CUDA
    targets = (*pack.targets, "flash_forward.sm80")
    built = dataclasses.replace(pack, architectures=("90",), targets=targets)
    monkeypatch.setattr(packs, "of", lambda *_: built)
    family = manifest.family("flash_forward")
    target = family.target("sm80")
    large, small = target.kernels[:2]
    own = (dataclasses.replace(large, shared_memory=102_400), small)
    changed = dataclasses.replace(
        family, targets=(dataclasses.replace(target, kernels=own),)
    )  # fmt: skip
    found = {info.key: info for info in kernel_info.infos([changed])}
    assert "102,400 bytes of shared memory" in (found[large.key].reason or "")
    assert not found[large.key].available
    assert found[small.key].available


@pytest.fixture
def without_cuda(monkeypatch):
    """Fails if CUDA is asked for; nothing is known of kernels yet."""

    def has_cuda():
        raise AssertionError("asked for CUDA")

    monkeypatch.setattr(devices, "has_cuda", has_cuda)
    monkeypatch.setattr(finding, "_kernels", {})
    monkeypatch.setattr(choice, "_chosen", {})


def test_a_kernel_of_the_cpu_does_not_ask_for_cuda(without_cuda):
    """Which would start it: a tenth of a second on a machine with GPUs."""
    key = next(info.key for info in listing.kernels("flash_forward", "cpu") if info.available)
    assert finding.kernel(key).info.key == key


def test_a_choice_for_the_cpu_does_not_ask_for_cuda(without_cuda):
    """Nor could processes that are forked afterwards use it."""
    wanted = {"dtype": "f32", "d_head": 64, "causal": False}
    sizes = {"B": 1, "H": 1, "Hk": 1, "Sq": 4, "Sk": 4, "D": 64}
    device = torch.device("cpu")
    assert choice.choose("flash_forward", device, wanted, sizes).info.target == "cpu"
    why = {c.verdict for c in choice.explain("flash_forward", device, wanted, sizes).considered}
    assert "runs on a CUDA device" in why
    with pytest.raises(runtime.KernelNotFound, match="runs on a CUDA device"):
        choice.choose("flash_forward", device, {**wanted, "dtype": "f64"}, sizes)


def test_what_can_be_built_is_asked_of_targets_that_a_gpu_runs(device):
    gpu = torch.device("cuda", 0)
    device((8, 6))
    assert choice._targets_for("flash_forward", gpu, None) == ["sm80"]
    device((9, 0))
    assert choice._targets_for("flash_forward", gpu, None) == ["sm90a", "sm80"]


def test_properties_of_the_devices(monkeypatch, capsys):
    """Name, capability, multiprocessors and memory, as `runtime info` shows them."""
    from runtime import __main__ as command

    here = SimpleNamespace(
        name="Pretended", major=9, minor=0, multi_processor_count=132, total_memory=140 * 2**30
    )
    monkeypatch.setattr(devices, "has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: here)
    monkeypatch.setattr(command.listing, "kernels", lambda family, target: [])
    found = command.collect()
    assert found["devices"][1] == {
        "index": 1,
        "name": "Pretended",
        "capability": "9.0",
        "multiprocessors": 132,
        "memory": 140 * 2**30,
    }
    command.show(found)
    said = capsys.readouterr().out
    assert "GPU 1       9.0 (Pretended), 132 multiprocessors, 140.0 GiB\n" in said


def test_no_device_has_no_properties(monkeypatch):
    monkeypatch.setattr(devices, "has_cuda", lambda: False)
    assert devices.properties() == []

"""Which device runs which target, by capability and by what was compiled."""

from types import SimpleNamespace

import pytest
import torch

from runtime import devices


@pytest.fixture
def device(monkeypatch):
    """Pretends that there is a CUDA device."""

    def pretend(capability):
        devices.describe.cache_clear()
        devices.why_unavailable.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Pretended")

    yield pretend
    devices.describe.cache_clear()
    devices.why_unavailable.cache_clear()


def test_an_older_device_is_named_with_what_is_needed(device):
    device((7, 5))
    assert devices.why_unavailable(80, False, ("80", "90"), 0) == (
        "needs compute capability 8.0 or later, this device is 7.5 (Pretended)"
    )


def test_an_a_target_runs_on_its_own_capability_alone(device):
    device((10, 0))
    assert devices.why_unavailable(90, True, ("90a", "100"), 0) == (
        "needs compute capability exactly 9.0, this device is 10.0 (Pretended)"
    )
    device((9, 0))
    assert devices.why_unavailable(90, True, ("90a",), 0) is None


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0)])
def test_machine_code_runs_on_its_major_version_from_its_minor_version_up(device, capability):
    device(capability)
    assert devices.why_unavailable(80, False, ("80", "90"), 0) is None


def test_a_device_that_nothing_was_compiled_for_is_named_with_the_command(device):
    device((12, 0))
    assert devices.why_unavailable(80, False, ("80", "90"), 0) == (
        "compiled for compute capability 8.0, 9.0, this device is 12.0 (Pretended); rebuild "
        "its pack in its project, `pip install . -C cmake.define.CMAKE_CUDA_ARCHITECTURES=120`"
    )
    device((8, 0))
    assert devices.why_unavailable(80, False, ("86",), 0).startswith(
        "compiled for compute capability 8.6,"
    )


def test_properties_of_the_devices(monkeypatch, capsys):
    """Name, capability, multiprocessors and memory, as `runtime info` shows them."""
    from runtime import __main__ as command

    here = SimpleNamespace(
        name="Pretended", major=9, minor=0, multi_processor_count=132, total_memory=140 * 2**30
    )
    monkeypatch.setattr(devices, "has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: here)
    monkeypatch.setattr(command.catalog, "kernels", lambda family, target: [])
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

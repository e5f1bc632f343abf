"""The package, as installed."""

import kernelmint
import pytest
import torch

import ${name}

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


@pytest.mark.parametrize("device", DEVICES)
def test_the_function_the_key_and_the_operator_agree(device: str) -> None:
    x, y = torch.randn(2, 3, 1000, device=device)
    expected = ${name}.${function}(x, y, alpha=0.5)
    assert torch.allclose(expected, 0.5 * x + y, atol=1e-6)
    target = "cpu" if device == "cpu" else "sm80"
    info = kernelmint.kernels("${family}", target, "dtype == f32")[0]
    assert torch.equal(kernelmint.kernel(info.key)(x, y, alpha=0.5), expected)
    assert torch.equal(torch.ops.kernelmint.${family}(info.key, x, y, alpha=0.5), expected)
    compiled = torch.compile(${name}.${function}, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, y, alpha=0.5), expected)

"""diffusers: `native` through PyTorch's slot, on the CPU `flash_hub` through `hf-folder`, too."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from kernelmint.integrations import torch as slot
from kernelmint.integrations.hf_folder import main

if importlib.util.find_spec("diffusers") is None:
    pytest.skip("diffusers is not installed", allow_module_level=True)
BEGINNING = """
import diffusers, torch
from kernelmint.integrations import torch as slot
torch.manual_seed(0)
torch.set_num_threads(1)
"""
PIPELINE = """
pipeline = diffusers.DiTPipeline(
    diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=64, in_channels=4, out_channels=4, num_layers=2,
        sample_size=16,
    ).eval(),
    diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4).eval(),
    diffusers.DDIMScheduler(),
)
def images():
    options = {"num_inference_steps": 3, "generator": torch.manual_seed(1), "output_type": "np"}
    return torch.from_numpy(pipeline([1, 7], **options).images)
want = images()
with slot.active():
    got = images()
    calls = slot.calls()
assert calls.ours == 6 and sum(calls.pytorch.values()) == 1, calls  # its decoder has heads of 8
torch.testing.assert_close(got, want, rtol=2.0**-14, atol=2.0**-14)
"""
FLASH_HUB = """
model = diffusers.FluxTransformer2DModel(
    in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
    num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
    axes_dims_rope=(4, 4, 8),
).eval()
def sample(backend, dtype):
    model.to(dtype).set_attention_backend(backend)
    tensors = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    with torch.no_grad():
        return model(**tensors, **places).sample.float()
inputs = {
    "hidden_states": torch.randn(1, 64, 4), "encoder_hidden_states": torch.randn(1, 48, 32),
    "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([0.5]),
}
rows = torch.arange(8.0)
pixels = torch.cartesian_prod(torch.zeros(1), rows, rows)
places = {"img_ids": pixels, "txt_ids": torch.zeros(48, 3)}
model.bfloat16()  # whose weights are compared in fp32, too
exact = sample("native", torch.float32)
native, ours = (sample(backend, torch.bfloat16) for backend in ("native", "flash_hub"))
from diffusers.models import attention_dispatch as dispatch
hub = dispatch._HUB_KERNELS_REGISTRY[dispatch.AttentionBackendName.FLASH_HUB]
import kernelmint
assert hub.kernel_fn is kernelmint.flash_attn_func
assert (ours - exact).abs().max() <= 2 * (native - exact).abs().max()
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [PIPELINE, FLASH_HUB], ids=["native", "flash_hub"])
def test_a_small_model(script: str, tmp_path: Path) -> None:
    pytest.importorskip("kernels")
    result = CliRunner().invoke(main, [str(tmp_path / "flash-attn")])
    answers = result.output.strip().removeprefix("export LOCAL_KERNELS=")
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + script],
        env={**os.environ, "LOCAL_KERNELS": answers, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
def test_a_transformer_and_a_pipeline_on_a_gpu() -> None:
    """In bf16 ours is as near to fp32's as PyTorch's own attention is."""
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=64, in_channels=4, out_channels=4, num_layers=2,
        sample_size=16,
    ).eval().cuda()  # fmt: skip
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hidden = torch.randn(2, 4, 16, 16, device="cuda")
    places = {name: torch.tensor([1, 7], device="cuda") for name in ("timestep", "class_labels")}

    def sample(dtype: torch.dtype) -> torch.Tensor:
        model.to(dtype).load_state_dict(weights)
        with torch.no_grad():
            return model(hidden.to(dtype), **places).sample.float()

    exact, native = sample(torch.float32), sample(torch.bfloat16)
    with slot.active("error"):
        ours = sample(torch.bfloat16)
        assert slot.calls().ours == 2
    assert (ours - exact).abs().max() <= 2 * (native - exact).abs().max()
    decoder = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4)
    pipeline = diffusers.DiTPipeline(model, decoder.eval(), diffusers.DDIMScheduler())
    pipeline.to("cuda", torch.bfloat16)
    with slot.active():
        images = pipeline([1, 7], num_inference_steps=3, output_type="np").images
        assert slot.calls().ours == 6
    assert torch.from_numpy(images).isfinite().all()

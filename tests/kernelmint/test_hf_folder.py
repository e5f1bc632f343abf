"""`kernelmint hf-folder`: transformers' own FlashAttention path, on the CPU, in a process each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelmint.integrations.hf_folder import main
from tests.slow import slow_after

pytest.importorskip("transformers", minversion="5")
pytest.importorskip("kernels")

MODELS = """
import importlib.metadata
version = importlib.metadata.version
if version("kernels").startswith("0.17."):  # what transformers calls of 0.18, which it asks for
    importlib.metadata.version = lambda name: "0.18.2" if name == "kernels" else version(name)
import torch, transformers
torch.manual_seed(0)
torch.set_num_threads(1)
sizes = dict(
    vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=2, head_dim=16,
    num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2, pad_token_id=0,
    bos_token_id=None, eos_token_id=None, sliding_window=16,
)
FLASH = "kernels-community/flash-attn2"
def made(kind, **options):
    config = getattr(transformers, kind + "Config")(**sizes, **options)
    return getattr(transformers, kind + "ForCausalLM")(config).eval()
"""
LOGITS = """
ids, mask = torch.randint(1, 97, (2, 40)), torch.ones(2, 40).long()
ids[1, :15] = mask[1, :15] = 0
for kind, options in (
    ("Mistral", {}), ("Gemma2", {"attn_logit_softcapping": 2.0}),
    ("GptOss", {"num_local_experts": 2, "num_experts_per_tok": 1}),
):
    model, found = made(kind, **options), []
    for implementation in ("eager", FLASH):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(ids, attention_mask=mask).logits[mask.bool()])
    torch.testing.assert_close(*found, rtol=2.0**-14, atol=2.0**-14)
"""
CONTINUOUS = """
model = made("Llama")
prompts = [torch.randint(1, 97, (n,)).tolist() for n in (5, 40, 17)]
want = [
    model.generate(torch.tensor([p]), max_new_tokens=20, do_sample=False)[0, len(p):].tolist()
    for p in prompts
]
model.set_attn_implementation(FLASH)
found = model.generate_batch(
    prompts,
    generation_config=transformers.GenerationConfig(
        max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0
    ),
    continuous_batching_config=transformers.ContinuousBatchingConfig(
        num_blocks=16, max_batch_tokens=64
    ),
)
assert [output.generated_tokens for output in found.values()] == want
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the command says is to be exported."""
    folder = tmp_path_factory.mktemp("hf") / "flash-attn"
    for _ in range(2):  # it may be written again
        result = CliRunner().invoke(main, [str(folder)])
        assert result.exit_code == 0, result.output
    return result.output.strip().removeprefix("export LOCAL_KERNELS=")


@pytest.mark.parametrize(
    "script", slow_after(1, [LOGITS, CONTINUOUS]), ids=["logits", "continuous batching"]
)
def test_transformers_takes_the_folder_for_flash_attention(answers: str, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODELS + script],
        env={**os.environ, "LOCAL_KERNELS": answers, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = CliRunner().invoke(main, [str(tmp_path)])
    assert result.exit_code == 1
    assert "holds other files" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]

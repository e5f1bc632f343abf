"""`kernelmint hf-folder`: a folder that Hugging Face's `kernels` takes for FlashAttention.

transformers and diffusers ask that library for kernels by the names of repositories, and
LOCAL_KERNELS names the folder that answers for a repository.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

REPOSITORIES = ("kernels-community/flash-attn2", "kernels-community/vllm-flash-attn3")
_METADATA = {
    "id": "_kernelmint_flash_attn",  # the module's name, which no other module may have
    "name": "kernelmint-flash-attn",
    "version": 1,
    "license": "Apache-2.0",
    "python-depends": [],
    "backend": {"type": "cpu"},  # needed, and without effect: the folder is not one of variants
}
_MODULE = '''"""FlashAttention's functions; `kernelmint hf-folder` wrote this."""

from kernelmint import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def _refuse(*args, **kwargs):
    raise NotImplementedError(
        "kernelmint: got a call of FlashAttention's inner functions, which context parallelism "
        "takes, expected one of its public ones"
    )


class flash_attn_interface:
    """Names that diffusers looks up beside the functions."""

    _flash_attn_forward = _flash_attn_backward = staticmethod(_refuse)
    _flash_attn_varlen_forward = _flash_attn_varlen_backward = staticmethod(_refuse)
'''


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def main(folder: Path) -> None:
    """Writes FOLDER, which answers for FlashAttention in Hugging Face's libraries.

    It needs Kernelmint where it is used, and holds no kernels itself.

    \b
    Examples:
      kernelmint hf-folder answers
    """
    files = {"metadata.json": json.dumps(_METADATA, indent=2) + "\n", "__init__.py": _MODULE}
    if folder.exists() and {path.name for path in folder.iterdir()} - {*files, "__pycache__"}:
        raise click.ClickException(
            f"{folder} holds other files: got a folder with something in it, expected a new one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    answers = ":".join(f"{repository}={folder.resolve()}" for repository in REPOSITORIES)
    click.echo(f"export LOCAL_KERNELS={answers}")

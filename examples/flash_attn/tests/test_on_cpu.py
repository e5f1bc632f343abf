"""What needs no GPU: the functions with the fp64 oracles in the kernels' place, each call held to
what its family's spec requires; and their signatures, which are upstream's."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flash_attn_pack
import pytest
import torch
import yaml
from flash_attn_pack import flash_attn_interface as functions
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SPECS = Path(__file__).parents[1] / "kernel_specs"
sys.path.insert(0, str(SPECS))  # the oracles, as modules of the folder


def module(name: str) -> Any:
    return importlib.import_module(f"flash_attn.{name}")


def read(path: str) -> dict[str, Any]:
    return yaml.safe_load((SPECS / "flash_attn" / path).read_text())


@functools.cache
def archive() -> Path:
    """The folder of the archive that the specs pin."""
    from codegen.sources import archives

    pin = read("sm80.yaml")["build"]["archives"]["upstream"]
    try:
        return archives.folder(f"pypi:{pin['pypi']}=={pin['version']}", pin["sha256"])
    except archives.ArchiveError as error:  # neither fetched before nor an index that has it
        pytest.skip(str(error))


WORDS = {"true": True, "false": False, "ceil_div": lambda a, b: -(-a // b)}  # else Python's


class Family:
    """A front whose kernel is an oracle, and which holds calls to the conditions of its spec."""

    def __init__(self, name: str, oracle: Any) -> None:
        self.spec, self.target = read(f"{name}/family.yaml"), read(f"{name}/sm80.yaml")
        self.oracle, self.seen = oracle, []

    def __call__(self, *inputs: Tensor | None, **options: Any) -> Any:
        arguments = self.spec["arguments"]
        names = [name for name, a in arguments.items() if "tensor" in a]
        given = dict(zip(names, inputs, strict=False)) | {
            n: options.pop(n) for n in names if n in options
        }
        known: dict[str, Any] = dict(WORDS)
        for name in names:
            tensor = given.get(name)
            known[name] = tensor is not None
            for dim, extent in zip(
                arguments[name]["tensor"], () if tensor is None else tensor.shape, strict=False
            ):
                if str(dim).isidentifier():
                    assert known.setdefault(dim, extent) == extent, f"{name}: {dim}"
        for name, argument in arguments.items():
            if "scalar" in argument:
                default = argument.get("default")
                known[name] = options.get(
                    name, eval(default, known) if isinstance(default, str) else default
                )
            elif argument.get("optional") and "output" in argument:
                known[name] = options.get(f"return_{name}", False)
        flags = {n: eval(text, known) for n, text in self.spec["front"]["takes"].items()}
        kernel = next(
            product
            for product in (entry["product"] for entry in self.target["sets"]["all"])
            if all(
                flags.get(n, v) in (v if isinstance(v, list) else [v]) for n, v in product.items()
            )
        )
        known |= kernel | flags
        for rule in self.spec["requires"] + self.target.get("requires", []):
            assert eval(rule["that"], known), f"{rule} of {flags}"
        for name in names:
            tensor = given.get(name)
            if tensor is not None and tensor.is_floating_point():
                assert tensor.stride(-1) == 1, name
        self.seen.append(flags)
        given = {n: t for n, t in given.items() if t is not None and n != "rng"}
        scalars = {name: known[name] for name, a in arguments.items() if "scalar" in a}
        dtypes = [a["dtype"] == "dtype" for a in arguments.values() if "output" in a]
        found = self.oracle(**given, **scalars)
        found = [
            t.to(inputs[0].dtype if is_elements else torch.float32)
            for t, is_elements in zip(found, dtypes, strict=False)
        ]
        return tuple(found)


def append(q: Tensor, k: Tensor, v: Tensor, *new: Tensor, **options: Any) -> Any:
    """The oracle, which returns the cache, as a kernel, which writes it."""
    *found, keys, values = module("flash_attn_append.reference").append(q, k, v, *new, **options)
    k.copy_(keys)
    v.copy_(values)
    return found


@pytest.fixture(autouse=True)
def families(monkeypatch) -> SimpleNamespace:
    oracles = {
        "flash_attn_forward": module("flash_attn_forward.reference").forward,
        "flash_attn_split": module("flash_attn_split.reference").split,
        "flash_attn_append": append,
    }
    made = SimpleNamespace(**{name: Family(name, oracle) for name, oracle in oracles.items()})
    monkeypatch.setattr(functions, "kernelmint", made)
    made.sm_count = lambda device: 132
    return made


def plain(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window=(-1, -1), **options: Any
) -> Tensor:
    options |= {"window_left": window[0], "window_right": 0 if causal else window[1]}
    attention = module("attention").attention
    return torch.stack([attention(*one, **options)[0] for one in zip(q, k, v, strict=True)])


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).bfloat16() for shape in shapes]


def close(got: Tensor, want: Tensor) -> bool:
    return got.shape == want.shape and torch.allclose(got.double(), want, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    ("sq", "sk", "heads", "head_dim", "options", "kernel"),
    [
        (128, 256, (2, 2), 64, {}, {"even_mn": True, "even_k": True}),
        (200, 70, (64, 2), 64, {"causal": True}, {"even_mn": False, "causal": True}),
        (70, 130, (2, 2), 59, {"window": (20, 3)}, {"local": True, "even_k": True}),
        (70, 130, (2, 2), 72, {"causal": True}, {"even_k": False}),
        (70, 130, (2, 2), 128, {"window": (500, 500)}, {"local": False, "even_k": True}),
        (1, 300, (8, 2), 64, {"causal": True}, {"causal": False, "split": True}),
        (1, 300, (8, 2), 64, {"window": (20, 0)}, {"local": True}),
        (128, 128, (2, 1), 256, {"softcap": 5.0}, {"capped": True, "even_mn": False}),
        (3, 4000, (2, 2), 96, {"causal": True}, {"split": True, "causal": True}),
    ],
)
def test_a_batch(families, sq, sk, heads, head_dim, options, kernel) -> None:
    q, k, v = tensors((2, sq, heads[0], head_dim), *[(2, sk, heads[1], head_dim)] * 2)
    named = {"window_size" if n == "window" else n: value for n, value in options.items()}
    out, lse, probs = functions.flash_attn_func(q, k, v, return_attn_probs=True, **named)
    assert close(out, plain(q, k, v, **options))
    assert lse.shape == (2, heads[0], sq)
    assert probs.numel() == 0
    (flags,) = families.flash_attn_forward.seen + families.flash_attn_split.seen
    assert kernel.items() <= flags.items()


class Operators(TorchDispatchMode):
    """What PyTorch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (1, 4000)])
def test_nothing_but_the_kernel_is_called_for_tensors_that_it_takes(
    monkeypatch, families, queries, keys
) -> None:
    """Each view would cost as much as a tenth of the call."""
    q, k, v = tensors((1, queries, 2, 64), *[(1, keys, 2, 64)] * 2)
    lengths = torch.tensor([keys], dtype=torch.int32)
    found = torch.zeros(1, queries, 2, 64), torch.zeros(1, 2, queries)
    for name in ("flash_attn_forward", "flash_attn_split"):
        monkeypatch.setattr(families, name, lambda *inputs, **options: found)
    with Operators() as operators:
        assert functions.flash_attn_func(q, k, v, causal=True) is found[0]
        assert functions.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths) is found[0]
    assert not operators.seen


def test_keys_are_split_as_upstream_splits_them() -> None:
    """num_splits_heuristic of its flash_api.cpp, for 2 * 132 thread blocks at once."""
    q = torch.empty(1, 1, 1, 64)

    def splits(batch: int, queries: int, keys: int) -> int:
        return functions._splits(q, batch, queries, 8, 64, keys)

    # The last: of 29 splits 232 blocks are 88% of a wave; of 33 all of it, but those are more.
    assert [splits(1, 1, keys) for keys in (256, 257, 2048, 1 << 20)] == [1, 2, 8, 29]
    assert splits(26, 1, 4096) == 6  # 208 blocks are 79% of a wave, 1,248 are 95% of five
    assert splits(27, 1, 4096) == 1  # 216 are above 80%
    assert splits(0, 1, 4096) == 1


def test_packed_tensors_and_slopes() -> None:
    (qkv,) = tensors((2, 100, 3, 2, 64))
    slopes = torch.tensor([0.5, 0.25])
    want = plain(*qkv.unbind(2), causal=True, slopes=slopes)
    options = {"causal": True, "alibi_slopes": slopes}
    assert close(functions.flash_attn_qkvpacked_func(qkv, **options), want)
    assert close(functions.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], **options), want)
    rows = torch.tensor([0, 100, 200], dtype=torch.int32)
    packed = functions.flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), rows, 100, **options)
    assert close(packed.unflatten(0, (2, 100)), want)


@pytest.mark.parametrize(
    ("capability", "head_dim", "causal", "dropout", "tiles"),
    [
        (80, 96, True, False, (128, 64, 4)),
        (86, 96, True, True, (64, 64, 4)),
        (86, 96, False, False, (128, 64, 4)),
        (90, 128, False, False, (128, 64, 4)),
        (89, 128, True, False, (64, 64, 4)),
        (89, 128, False, False, (128, 32, 4)),
        (89, 128, True, True, (128, 32, 4)),
        (80, 256, False, True, (128, 64, 8)),
        (86, 256, False, True, (64, 64, 4)),
        (90, 256, True, False, (64, 64, 4)),
    ],
)
def test_each_device_takes_upstreams_tiles(capability, head_dim, causal, dropout, tiles) -> None:
    """As flash_fwd_launch_template.h has them."""
    call = {"head_dim": head_dim, "causal": causal, "dropout": dropout}
    rows = read("flash_attn_forward/choices.yaml")["choices"]
    known = {**call, "compute_capability": capability}
    row = next(row for row in rows if eval(row.get("when", "True"), known))
    products = [entry["product"] for entry in read("flash_attn_forward/sm80.yaml")["sets"]["all"]]
    wanted = {**call, **row["take"]}
    kernel = next(p for p in products if all(p.get(n, v) == v for n, v in wanted.items()))
    assert (kernel["tile_m"], kernel["tile_n"], kernel["warps"]) == tiles


@pytest.mark.parametrize("lengths", [(5, 70, 30), (1, 1, 1)])
def test_sequences_of_any_lengths(lengths) -> None:
    keys = (80, 70, 256)
    q, k, v = tensors((sum(lengths), 4, 64), *[(sum(keys), 2, 64)] * 2)
    cu = [torch.tensor([0, *n]).cumsum(0).int() for n in (lengths, keys)]
    out, lse, _ = functions.flash_attn_varlen_func(
        q, k, v, *cu, max(lengths), max(keys), causal=True, return_attn_probs=True
    )
    parts = zip(*(t.split(n) for t, n in ((q, lengths), (k, keys), (v, keys))), strict=True)
    want = torch.cat([plain(*(t[None] for t in part), causal=True)[0] for part in parts])
    assert close(out, want)
    assert lse.shape == (4, sum(lengths))


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("queries", [1, 5])
def test_a_cache_of_keys_is_read_and_appended_to(families, paged, queries) -> None:
    q, k, v, k_new, v_new = tensors(
        (2, queries, 4, 64), *[(2, 512, 2, 64)] * 2, *[(2, queries, 2, 64)] * 2
    )
    lengths = torch.tensor([7, 300], dtype=torch.int32)
    k_cache, v_cache = k.clone(), v.clone()
    out = functions.flash_attn_with_kvcache(
        q, k_cache, v_cache, k_new, v_new, cache_seqlens=lengths, causal=True
    )
    for b, n in enumerate(lengths.tolist()):
        k[b, n : n + queries], v[b, n : n + queries] = k_new[b], v_new[b]
        want = plain(q[b, None], k[b, None, : n + queries], v[b, None, : n + queries], causal=True)
        assert close(out[b, None], want)
    assert torch.equal(k_cache, k)
    table = None
    if paged:
        table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
        pages = torch.empty(4, 256, 2, 64).bfloat16()
        k_cache, v_cache = pages.clone(), pages.clone()
        for cache, t in ((k_cache, k), (v_cache, v)):
            cache[table.long()] = t.unflatten(1, (2, 256))
    again, lse = functions.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=lengths + queries, block_table=table, causal=True,
        return_softmax_lse=True,
    )  # fmt: skip
    assert torch.equal(again, out)
    assert lse.shape == (2, 4, queries)


@functools.cache
def upstreams(path: str, *names: str) -> dict[str, Any]:
    """Functions of a file of the archive, as they are, without decorators, on the CPU."""
    einops = pytest.importorskip("einops")
    tree = ast.parse((archive() / path).read_text().replace('device = "cuda"', 'device = "cpu"'))
    chosen = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    for function in chosen:
        function.decorator_list = []
    scope = {"torch": torch, "math": math, "pytest": pytest}
    scope |= {"rearrange": einops.rearrange, "repeat": einops.repeat}
    exec(compile(ast.Module(chosen, []), path, "exec"), scope)
    return scope


def rotate(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: Tensor, interleaved: bool
) -> Tensor:
    """Upstream's apply_rotary_emb by its formula, at a place of each sequence's own."""
    formula = upstreams("flash_attn/layers/rotary.py", "rotate_half", "apply_rotary_emb_torch")
    at = seqlen_offsets.long()[:, None] + torch.arange(x.shape[1])
    turned = formula["apply_rotary_emb_torch"](
        x.float(), cos[at].float(), sin[at].float(), interleaved
    )
    return turned.to(x.dtype)


@pytest.mark.parametrize("seed", range(40))
def test_a_cache_is_what_upstreams_own_test_holds_kernels_to(seed) -> None:
    """test_flash_attn_kvcache, whose formula is upstream's, with the oracles for kernels."""
    names = ("attn_bias_from_alibi_slopes", "construct_local_mask", "attention_ref")
    scope = upstreams(
        "tests/test_flash_attn.py", *names, "_generate_block_kvcache", "test_flash_attn_kvcache"
    )
    scope["apply_rotary_emb"] = rotate
    scope["flash_attn_with_kvcache"] = functions.flash_attn_with_kvcache
    drawn = random.Random(seed)
    seqlen_q, seqlen_k = drawn.choice([(1, 128), (1, 339), (3, 300), (64, 339), (100, 128)])
    causal, where = (
        drawn.random() < 0.5,
        drawn.choice(["", "", "index", "padding", "both", "pages"]),
    )
    scope["test_flash_attn_kvcache"](
        seqlen_q, seqlen_k, drawn.choice([32, 59, 64, 128]),
        has_batch_idx=where in ("index", "both"), has_leftpad=where in ("padding", "both"),
        paged_kv_block_size=256 if where == "pages" else None,
        rotary_fraction=drawn.choice([0.0, 0.5, 1.0]), rotary_interleaved=drawn.random() < 0.5,
        seqlen_new_eq_seqlen_q=drawn.random() < 0.5, causal=causal,
        local=not causal and drawn.random() < 0.5, alibi=drawn.random() < 0.3, new_kv=True,
        mha_type=drawn.choice(["mha", "mqa", "gqa"]), num_splits=drawn.choice([0, 1, 3]),
        dtype=torch.float16,
    )  # fmt: skip


@pytest.mark.parametrize("variant", range(4))
def test_the_calls_that_appending_is_verified_with_suit_its_spec(families, variant) -> None:
    """And what is turned is exact, whatever a kernel computes it in."""
    made = module("flash_attn_append.reference")
    all_cases = module("flash_attn_append.tools").CASES
    cases = [c for c in all_cases[variant::4] if c["parameters"]["head_dim"] == 64]
    assert len(cases) == 2 * 3 * 2**3  # splits, masks; caps, slopes, head dimensions below 64
    for case in cases:
        parameters = {**case["parameters"], "dtype": "bf16"}
        inputs = made.tuning_inputs(case["sizes"], parameters, torch.Generator().manual_seed(0))
        inputs |= {n: torch.tensor(v, dtype=torch.int32) for n, v in case["values"].items()}
        families.flash_attn_append(
            *(inputs.pop(name) for name in ("q", "k", "v", "k_new", "v_new", "cache_seqlens")),
            **inputs, **case["options"],
        )  # fmt: skip
        asked = {n: parameters[n] for n in ("causal", "local", "capped", "alibi", "split")}
        assert asked.items() <= families.flash_attn_append.seen[-1].items()
        if "rotary_cos" in inputs:
            cos, sin = (inputs[name].double() for name in ("rotary_cos", "rotary_sin"))
            key = inputs["rotary_cos"].new_tensor(7 / 4).expand(len(cos), 1, 2 * cos.shape[1])
            turned = [made.turned(t, cos, sin, True) for t in (key, key.double())]
            assert torch.equal(turned[0].double(), turned[1])


def test_pages_of_what_asks_for_a_gradient_are_read_and_only_a_backward_pass_refuses() -> None:
    q, pages = tensors((7, 2, 64), (4, 256, 2, 64))
    lengths = torch.tensor([0, 3, 7], dtype=torch.int32), torch.tensor([0, 300, 500]).int()
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)

    def call() -> Tensor:
        return functions.flash_attn_varlen_func(
            q, pages, pages, *lengths, 4, 300, causal=True, block_table=table
        )

    want = call()
    q.requires_grad_()
    out = call()
    assert torch.equal(out, want)
    with pytest.raises(RuntimeError, match="no backward pass of pages"):
        out.sum().backward()


def test_no_key_leaves_nothing() -> None:
    q, k = tensors((2, 3, 2, 64), (2, 0, 2, 64))
    out, lse, _ = functions.flash_attn_func(q, k, k, return_attn_probs=True)
    assert not out.any()
    assert (lse == math.inf).all()


def test_dropout_takes_a_cap_from_no_one_and_numbers_from_pytorch(monkeypatch, families) -> None:
    q, k, v = tensors(*[(2, 64, 2, 64)] * 3)
    with pytest.raises(ValueError, match="caps no scores with dropout"):
        functions.flash_attn_func(q, k, v, 0.1, softcap=1.0)
    asked = []
    monkeypatch.setattr(
        functions, "_philox", lambda like, count: asked.append(count) or torch.zeros(2)
    )
    functions.flash_attn_func(q, k, v, 0.1)
    assert asked == [2 * 2 * 32]
    assert families.flash_attn_forward.seen[0]["dropout"]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_tensors_on_a_cpu_are_refused_with_what_runs_them(monkeypatch, dropout) -> None:
    monkeypatch.undo()  # the families themselves
    functions.kernelmint.load(SPECS / "flash_attn/flash_attn_forward")
    q, k, v = tensors(*[(2, 64, 2, 64)] * 3)
    with pytest.raises(functions.kernelmint.KernelNotFound, match="runs on a CUDA device"):
        functions.flash_attn_func(q.bfloat16(), k.bfloat16(), v.bfloat16(), dropout, causal=True)


def test_signatures_are_upstreams() -> None:
    """Read from the archive that the specs pin, which is not imported."""
    tree = ast.parse((archive() / "flash_attn/flash_attn_interface.py").read_text())
    public = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"}
    ours = {n: f for n, f in vars(functions).items() if n.startswith("flash_attn_") and callable(f)}
    assert ours.keys() == {name for name in public if name.startswith("flash_attn_")}
    for name, function in ours.items():
        parameters = inspect.signature(function).parameters
        assert list(parameters) == [a.arg for a in public[name].args.args], name
        defaults = [p.default for p in parameters.values() if p.default is not p.empty]
        assert defaults == [ast.literal_eval(d) for d in public[name].args.defaults], name


def test_the_version_is_that_of_the_functions() -> None:
    assert (
        flash_attn_pack.__version__ == read("sm80.yaml")["build"]["archives"]["upstream"]["version"]
    )


def test_an_import_takes_no_compiler() -> None:
    """torch._dynamo takes longer to import than all the rest."""
    program = "import sys, flash_attn_pack; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)

"""Every public function in every mode of PyTorch: the table of docs/runtime.md, cell by cell.

A cell is the function's result by PyTorch's mode against the eager one. A cell that is refused is
in `REFUSED`, with what the error says.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import multiprocessing
import pickle
import re
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import runtime
from codegen import scaffold
from kernel_specs.hstu.hstu_bsa.reference import GateMLP
from runtime import manifest, ondemand, packs

DOCS = Path(__file__).parents[2] / "docs/runtime.md"
GATED = runtime.kernels("block_sparse", "cpu")[0].parameters
OPTIONS = {name: GATED[name] for name in ("block_count", "block_size", "mode")}
A, L = GATED["attention_dim"], GATED["linear_dim"]
LEAST, LENGTH, MOST = GATED["block_size"] + 1, 70, 4096  # in graphs for many lengths
FAMILY = "scale_add_in_modes"


def key(device: str) -> str:
    target, dtype = ("cpu", "f32") if device == "cpu" else ("sm80", "bf16")
    where = f"dtype == {dtype} and d_head == 64 and not causal"
    return runtime.kernels("flash_forward", target, where)[0].key


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return runtime.attention(q, k, v, causal=True)


class Sdpa(torch.nn.Module):
    def forward(self, q, k, v):
        return runtime.sdpa(q, k, v, is_causal=True)


class Decode(torch.nn.Module):
    def forward(self, q, k, v):
        return runtime.decode(q, k, v)


class Upstream(torch.nn.Module):
    """FlashAttention's functions, of windows, that go to flash_prefill."""

    def forward(self, q, k, v):
        return runtime.flash_attn_func(q, k, v, causal=True, window_size=(40, 0))


class Packed(torch.nn.Module):
    def forward(self, q, k, v, places):
        return runtime.flash_attn_varlen_func(q, k, v, places, places, causal=True)


class Cached(torch.nn.Module):
    """The newest key of each cache is written into it."""

    def forward(self, q, k_cache, v_cache, k, v, used):
        o = runtime.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=used)
        return o, k_cache + 0, v_cache + 0


class BlockSparse(torch.nn.Module):
    def forward(self, q, k, v, u, g_cmp):
        return runtime.block_sparse_attention(q, k, v, u, g_cmp, **OPTIONS)


class Jagged(torch.nn.Module):
    """With a stated length; test_tracing.py has what is refused without."""

    def __init__(self, device):
        super().__init__()
        torch.manual_seed(1)
        self.gates = GateMLP(A).requires_grad_(False).to(device)
        self.register_buffer("mask", torch.zeros(128, 128, dtype=torch.bool, device=device))

    def forward(self, q, v, offsets):
        return runtime.hstu_attention_with_bsa(
            2, A, L, q, q, v, v, offsets, self.mask, self.gates, max_length=128, **OPTIONS
        )


class ByKey(torch.nn.Module):
    def __init__(self, key):
        super().__init__()
        self.kernel = runtime.kernel(key)

    def forward(self, *tensors):
        return self.kernel(*tensors)


class Operator(torch.nn.Module):
    def __init__(self, key):
        super().__init__()
        self.key = key

    def forward(self, q, k, v):
        return torch.ops.kernelmint.flash_forward(self.key, q, k, v, return_lse=True)


def _float(device):
    return {"device": device, "dtype": torch.float32 if device == "cpu" else torch.bfloat16}


def _qkv(device, length, *, order=(2, -1, 4, 64)):
    shape = [length if extent == -1 else extent for extent in order]
    return tuple(torch.randn(3, *shape, **_float(device)).unbind())


def _decoded(device, length):
    return _qkv(device, 1)[0], *_qkv(device, length)[1:]


def _packed(device, length):
    places = torch.tensor([0, length // 2, length], dtype=torch.int32, device=device)
    return *(t[0] for t in _qkv(device, length)), places


def _cached(device, length):
    newest = (t.clone() for t in _qkv(device, 1)[1:])
    used = torch.tensor([length // 2, length - 1], dtype=torch.int32, device=device)
    return *_decoded(device, length), *newest, used


def _gated(device, length):
    tensors = (torch.randn(2, length, 4, size, device=device) for size in (A, A, L, L))
    return *tensors, torch.rand(2, length, 4, device=device)


def _jagged(device, length):
    q, v = (torch.randn(length, 2 * size, device=device) for size in (A, L))
    return q, v, torch.tensor([0, length // 2, length], device=device)


@dataclasses.dataclass(frozen=True)
class Function:
    """A public function, and arguments that suit it."""

    make: Callable[[str], torch.nn.Module]  # on a device: what calls it
    inputs: Callable[[str, int], tuple[torch.Tensor, ...]]  # on a device, of a length
    axes: tuple[int | None, ...]  # of each input, the one that is as long as that


FUNCTIONS = {
    "`attention`": Function(lambda d: Attention(), _qkv, (1, 1, 1)),
    "`sdpa`": Function(lambda d: Sdpa(), functools.partial(_qkv, order=(2, 4, -1, 64)), (2, 2, 2)),
    "`decode`": Function(lambda d: Decode(), _decoded, (None, 1, 1)),
    "`flash_attn_func`": Function(lambda d: Upstream(), _qkv, (1, 1, 1)),
    "`flash_attn_varlen_func`": Function(lambda d: Packed(), _packed, (0, 0, 0, None)),
    "`flash_attn_with_kvcache`": Function(
        lambda d: Cached(), _cached, (None, 1, 1, None, None, None)
    ),
    "`block_sparse_attention`": Function(lambda d: BlockSparse(), _gated, (1, 1, 1, 1, 1)),
    "`hstu_attention_with_bsa`": Function(Jagged, _jagged, (0, 0, None)),
    "a kernel": Function(lambda d: ByKey(key(d)), _qkv, (1, 1, 1)),
    "its operator": Function(lambda d: Operator(key(d)), _qkv, (1, 1, 1)),
    "a new family's kernel": Function(
        lambda d: ByKey(f"{FAMILY}.{'cpu.f32-n8192' if d == 'cpu' else 'sm80.f32-t256-n1024'}"),
        lambda d, length: tuple(torch.randn(2, 3, length, device=d)),
        (1, 1),
    ),
}


def same(actual: Any, expected: Any, tolerance: float = 0) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def _replayed(record: Callable[..., Any], name: str, lengths=(LENGTH,)) -> None:
    """What `record` makes of a call computes what the call does, for other inputs."""
    function = FUNCTIONS[name]
    call = function.make("cpu")
    recorded = record(call, function.inputs("cpu", LENGTH))
    for length in lengths:
        inputs = function.inputs("cpu", length)
        same(recorded(*inputs), call(*inputs))


MANY = (LENGTH, 100, LEAST)


def _compiled(name: str, dynamic: bool | None, lengths=MANY) -> None:
    torch.compiler.reset()
    options = {"fullgraph": True, "backend": "aot_eager", "dynamic": dynamic}
    _replayed(lambda call, inputs: torch.compile(call, **options), name, lengths)


def _mark_dynamic(name: str) -> None:
    """One graph for all lengths, whatever rows were tuned."""
    function = FUNCTIONS[name]
    torch.compiler.reset()
    call = function.make("cpu")
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    marked = function.inputs("cpu", LENGTH)
    for tensor, axis in zip(marked, function.axes, strict=True):
        if axis is not None:
            torch._dynamo.mark_dynamic(tensor, axis, min=LEAST, max=MOST)
    same(compiled(*marked), call(*marked))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in MANY:
            inputs = function.inputs("cpu", length)
            same(compiled(*inputs), call(*inputs))


class Starred(torch.nn.Module):
    """One signature for all."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *tensors):
        return self.call(*tensors)


def _exported(call, inputs, axes=None, strict=False, length=None):
    shapes = None
    if axes is not None:
        shapes = {"tensors": tuple({} if axis is None else {axis: length} for axis in axes)}
    return torch.export.export(Starred(call), inputs, dynamic_shapes=shapes, strict=strict)


def _export(name: str, length: Any = None, strict: bool = False) -> None:
    axes = None if length is None else FUNCTIONS[name].axes
    program = functools.partial(_exported, axes=axes, strict=strict, length=length)
    lengths = (LENGTH,) if length is None else MANY
    _replayed(lambda call, inputs: program(call, inputs).module(), name, lengths)


class All(torch.nn.Module):
    """All functions in one model: C++ is compiled once."""

    def __init__(self):
        super().__init__()
        self.calls = torch.nn.ModuleList(f.make("cpu") for f in FUNCTIONS.values())

    def forward(self, inputs):
        return [call(*tensors) for call, tensors in zip(self.calls, inputs, strict=True)]


def _all_inputs(length):
    return [function.inputs("cpu", length) for function in FUNCTIONS.values()]


@functools.cache
def _reduced_overhead() -> tuple[list[Any], list[Any]]:
    torch.compiler.reset()
    inputs, model = _all_inputs(LENGTH), All()
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    return compiled(inputs), model(inputs)


@functools.cache
def _packaged(folder: str) -> tuple[list[Any], list[Any]]:
    """Recorded at one length, run at another."""
    shapes = [
        tuple({} if axis is None else {axis: torch.export.Dim.AUTO} for axis in function.axes)
        for function in FUNCTIONS.values()
    ]
    model = All()
    program = torch.export.export(
        model, (_all_inputs(LENGTH),), dynamic_shapes=(shapes,), strict=False
    )
    path = torch._inductor.aoti_compile_and_package(
        program,
        package_path=f"{folder}/all.pt2",
        inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"},
    )
    inputs = _all_inputs(100)
    return torch._inductor.aoti_load_package(path)(inputs), model(inputs)


def _one_of(results: tuple[list[Any], list[Any]], name: str) -> None:
    found, expected = (result[list(FUNCTIONS).index(name)] for result in results)
    same(found, expected, 1e-5)  # Inductor computes the gates; what is ours is the same


def _fake(name: str) -> None:
    function = FUNCTIONS[name]
    call, inputs = function.make("cpu"), function.inputs("cpu", LENGTH)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = call(*map(mode.from_tensor, inputs))
    described = functools.partial(tree_map, lambda t: (type(t).__name__, t.shape, t.dtype))
    expected = tree_map(lambda t: ("FakeTensor", t.shape, t.dtype), call(*inputs))
    assert described(fake) == expected


def _mapped(name: str) -> None:
    function = FUNCTIONS[name]
    call = function.make("cpu")
    calls = [function.inputs("cpu", LENGTH) for _ in range(2)]
    expected = [call(*inputs) for inputs in calls]
    for axis in (0, 1):
        many = (torch.stack(tensors, axis) for tensors in zip(*calls, strict=True))
        found = torch.func.vmap(call, in_dims=axis)(*many)
        # The model's gates are products that PyTorch computes for all at once.
        tolerance = 1e-5 if name == "`hstu_attention_with_bsa`" else 0
        for i, result in enumerate(expected):
            same(tree_map(lambda t, i=i: t[i], found), result, tolerance)


def _autocast(name: str) -> None:
    """Attention's inputs are cast, as SDPA's; a kernel by key has the dtype of its key."""
    function = FUNCTIONS[name]
    call, inputs = function.make("cpu"), function.inputs("cpu", LENGTH)
    casts = name in ("`attention`", "`sdpa`", "`decode`") or name.startswith("`flash_attn")
    with torch.autocast("cpu", torch.bfloat16):
        found = call(*inputs)
        if name == "`hstu_attention_with_bsa`":  # its gates are the model's, cast by PyTorch
            assert [t.dtype for t in found] == [torch.float32] * 3
            return
    cast = [t.bfloat16() if casts and t.is_floating_point() else t for t in inputs]
    expected = call(*cast)
    if name == "`flash_attn_with_kvcache`":  # caches keep their dtype
        found, expected = found[0], expected[0]
    same(found, expected)


def _in_inference_mode(name: str) -> None:
    function = FUNCTIONS[name]
    call, inputs = function.make("cpu"), function.inputs("cpu", LENGTH)
    expected = call(*inputs)
    with torch.inference_mode():
        found = call(*inputs)
        same(found, expected)
    assert all(tensor.is_inference() for tensor in torch.utils._pytree.tree_leaves(found))


def _saved(module: torch.nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _called(name: str, specs: str, inputs: tuple[torch.Tensor, ...]) -> Any:
    torch.set_num_threads(1)  # OpenMP's threads, which PyTorch uses, are lost in a fork
    if specs:
        runtime.load(specs)
    found = FUNCTIONS[name].make("cpu")(*inputs)
    return tree_map(lambda t: t.numpy(), found)


def _called_in_fork(name: str, specs: str, inputs: tuple[torch.Tensor, ...]) -> Any:
    _called(name, specs, inputs)  # the parent's threads have run kernels
    with _workers("fork") as forked:
        return forked.submit(_called, name, "", inputs).result(timeout=60)


def _in_process(name: str, specs: Path, call: Callable[..., Any] = _called) -> None:
    function = FUNCTIONS[name]
    inputs = function.inputs("cpu", LENGTH)
    found = _spawned().submit(call, name, str(specs), inputs).result(timeout=300)
    same(tree_map(torch.from_numpy, found), function.make("cpu")(*inputs))


def _workers(method: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method))


@functools.cache
def _spawned() -> ProcessPoolExecutor:
    return _workers("spawn")


def _in_threads(name: str) -> None:
    function = FUNCTIONS[name]
    call = function.make("cpu")
    inputs = [function.inputs("cpu", LENGTH) for _ in range(4)]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        for _ in range(3):
            found[i] = call(*inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, tensors in enumerate(inputs):
        same(found[i], call(*tensors))


class Wrapped(torch.Tensor):
    """A subclass with a dispatch of its own."""

    @staticmethod
    def __new__(cls, tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, tensor.shape, strides=tensor.stride(), dtype=tensor.dtype
        )

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(_unwrapped, (args, kwargs or {}))
        result = function(*args, **kwargs)
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, result)


def _unwrapped(value: Any) -> Any:
    return value.tensor if isinstance(value, Wrapped) else value


def _subclass(name: str) -> None:
    function = FUNCTIONS[name]
    call, inputs = function.make("cpu"), function.inputs("cpu", LENGTH)
    found = call(*map(Wrapped, inputs))
    assert all(isinstance(t, Wrapped) for t in torch.utils._pytree.tree_leaves(found))
    same(tree_map(_unwrapped, found), call(*inputs))


def _captured(name: str) -> None:
    function = FUNCTIONS[name]
    call, inputs = function.make("cuda"), function.inputs("cuda", LENGTH)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(*inputs)
    for tensor, fresh in zip(inputs, function.inputs("cuda", LENGTH), strict=True):
        tensor.copy_(fresh)
    graph.replay()
    same(found, call(*inputs))


def _on_second_gpu(name: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    function = FUNCTIONS[name]
    inputs = function.inputs("cuda:0", LENGTH)
    expected = function.make("cuda:0")(*inputs)
    with torch.cuda.device(0):
        found = function.make("cuda:1")(*(tensor.to("cuda:1") for tensor in inputs))
    assert all(t.get_device() == 1 for t in torch.utils._pytree.tree_leaves(found))
    same(tree_map(lambda t: t.to("cuda:0"), found), expected)


AUTO = torch.export.Dim.AUTO
MODES: dict[str, Callable[..., None]] = {
    "eager": lambda name: _replayed(lambda call, inputs: call, name, MANY),
    "`torch.compile(fullgraph=True)`": lambda name: _compiled(name, None),
    "… `dynamic=False`": lambda name: _compiled(name, False, (LENGTH,)),
    "… `dynamic=True`": lambda name: _compiled(name, True),
    "… `mark_dynamic(max=4096)`": _mark_dynamic,
    '… `mode="reduce-overhead"`': lambda name: _one_of(_reduced_overhead(), name),
    "`torch.export`": _export,
    "… `strict=True`": lambda name: _export(name, strict=True),
    "… `Dim(max=4096)`": lambda name: _export(name, torch.export.Dim("n", min=LEAST, max=MOST)),
    "… `Dim.AUTO`, `strict=True`": lambda name: _export(name, AUTO, strict=True),
    "AOTInductor, `Dim.AUTO`": lambda name, tmp_path_factory: _one_of(
        _packaged(str(tmp_path_factory.getbasetemp())), name
    ),
    "`make_fx`": lambda name: _replayed(lambda call, inputs: make_fx(call)(*inputs), name),
    "`torch.jit.trace`": lambda name: _replayed(torch.jit.trace, name, MANY),
    "`FakeTensorMode`": _fake,
    "`torch.func.functionalize`": lambda name: _replayed(
        lambda call, inputs: torch.func.functionalize(call), name
    ),
    "`torch.func.vmap`": _mapped,
    "`torch.autocast`": _autocast,
    "`torch.inference_mode`": _in_inference_mode,
    "CUDA graph": _captured,
    "`copy.deepcopy`": lambda name: _replayed(lambda call, inputs: copy.deepcopy(call), name),
    "`pickle`": lambda name: _replayed(lambda c, inputs: pickle.loads(pickle.dumps(c)), name),
    "`torch.save`": lambda name: _replayed(lambda call, inputs: _saved(call), name),
    "a spawned process": _in_process,
    "a forked process": lambda name, specs: _in_process(name, specs, _called_in_fork),
    "threads": _in_threads,
    "tensor subclass": _subclass,
    "another GPU than the current": _on_second_gpu,
}
ON_GPU = ("CUDA graph", "another GPU than the current")
# All functions are compiled together, once a process, and a process has the family once.
pytestmark = pytest.mark.xdist_group("modes")
REFUSED: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module", autouse=True)
def specs(tmp_path_factory):
    """A family of `kernelmint new`, which this process forgets afterwards."""
    folder = tmp_path_factory.mktemp("specs")
    scaffold.create(FAMILY, folder)
    runtime.load(folder / FAMILY)
    yield folder / FAMILY
    _spawned().shutdown()
    _spawned.cache_clear()
    torch.compiler.reset()
    registry = packs._registry()
    registry.singles.pop(FAMILY, None)
    ondemand.sources.pop(FAMILY, None)
    if (pack := registry.by_family.pop(FAMILY, None)) is not None:
        registry.packs.pop(pack.name)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=pytest.mark.gpu) if m in ON_GPU else m for m in MODES]
)
def test_cell(mode, function, request) -> None:
    names = [n for n in ("specs", "tmp_path_factory") if n in MODES[mode].__code__.co_varnames]
    options = {name: request.getfixturevalue(name) for name in names}
    refused = REFUSED.get((mode, function))
    if refused is None:
        MODES[mode](function, **options)
        return
    with pytest.raises(Exception, match=re.escape(refused)):
        MODES[mode](function, **options)


def table() -> str:
    """As docs/runtime.md has it."""
    lines = [f"| | {' | '.join(FUNCTIONS)} |", f"|---|{'---|' * len(FUNCTIONS)}"]
    for mode in MODES:
        cells = ("refused" if (mode, name) in REFUSED else "yes" for name in FUNCTIONS)
        lines.append(f"| {mode} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_the_docs_is_what_is_tested() -> None:
    assert table() in DOCS.read_text(encoding="utf-8")


def _rows(device, length):
    q, k, v, u, g_cmp = (tensor[0] for tensor in _gated(device, length))
    return q, k, v, u, g_cmp, torch.tensor([0, 30, length], device=device)


def _of_attention(device, length):
    q, k, v = _qkv(device, length)
    return torch.randn_like(q), q, k, v, *runtime.attention(q, k, v, return_lse=True)


def _biased(device, length):
    slopes = torch.rand(2, 4, device=device)
    return *_of_attention(device, length), *[None] * 6, slopes


def _dropping(make):
    """The same inputs, and random numbers' seed after those that are required."""
    return lambda device, length: (*make(device, length), torch.tensor([5, 7], device=device))


OPERATORS = {
    "flash_dropout": (_dropping(_qkv), {"return_lse": True, "dropout_p": 0.25}),
    "flash_dropout_backward": (
        _dropping(_of_attention),
        {"return_ds_aux": True, "dropout_p": 0.25},
    ),
    "flash_forward": (_qkv, {"return_lse": True}),
    "flash_backward": (_of_attention, {}),
    "flash_decode": (_decoded, {"return_lse": True}),
    "flash_prefill": (_qkv, {"return_lse": True}),
    "flash_prefill_backward": (_of_attention, {"return_ds_aux": True}),
    "flash_slopes_backward": (_biased, {"return_ds_aux": True}),
    "block_sparse": (_gated, {}),
    "hstu_bsa": (_rows, {"max_length": 64}),
}


@pytest.mark.parametrize("family", OPERATORS)
def test_opcheck_of_every_operator(family) -> None:
    assert set(OPERATORS) == set(packs.of("flash_forward").families)
    make, options = OPERATORS[family]
    where = "dtype == f32" if "flash" in family else None
    found = next(i for i in runtime.kernels(family, "cpu", where) if i.available)
    arguments = (found.key, *make("cpu", LENGTH))
    operator = getattr(torch.ops.kernelmint, family).default
    opcheck(operator, arguments, options)
    outputs = manifest.family(family).outputs
    made = zip(outputs, operator(*arguments, **options), strict=True)
    scalars = {name: v for name, v in options.items() if not name.startswith("return_")}
    into = {output.name: torch.empty_like(tensor) for output, tensor in made}
    opcheck(getattr(torch.ops.kernelmint, f"{family}_out").default, arguments, {**scalars, **into})


def _counted(call) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("causal", [False, True])
def test_flops_are_counted_as_pytorch_counts_its_own_attention(causal) -> None:
    q, k = torch.randn(2, 5, 4, 64), torch.randn(2, 5, 2, 64)
    heads_first = [t.transpose(1, 2).to("meta") for t in (q, q, q)]
    expected = _counted(
        lambda: torch.ops.aten._scaled_dot_product_flash_attention(*heads_first, 0.0, causal)
    )
    assert _counted(lambda: runtime.attention(q, k, k, causal=causal)) == expected > 0
    out = torch.empty_like(q)
    assert _counted(lambda: runtime.attention(q, k, k, causal=causal, out=out)) == expected


def test_flops_of_a_cache_in_pages_are_those_of_its_pages() -> None:
    q, cache = torch.randn(3, 1, 4, 64), torch.randn(8, 16, 2, 64)
    pages = torch.zeros(3, 5, dtype=torch.int32)
    found = _counted(lambda: runtime.decode(q, cache, cache, block_table=pages))
    assert found == 4 * 3 * 4 * 1 * (5 * 16) * 64


def test_flops_of_equal_lengths_are_exact() -> None:
    """Those of flash_prefill, which a window or padding changes nothing of."""
    q, k, v = torch.randn(2, 40, 4, 64), torch.randn(2, 50, 2, 64), torch.randn(2, 50, 2, 32)
    used = torch.tensor([50, 9], dtype=torch.int32)
    found = _counted(lambda: runtime.flash_attn_func(q, k, v, window_size=(9, 0), seqused_k=used))
    assert found == 2 * 2 * 4 * 40 * 50 * (64 + 32)


def test_flops_of_packed_lengths_are_those_that_pytorch_counts() -> None:
    q, k = torch.randn(70, 4, 64), torch.randn(100, 4, 64)
    places = [torch.tensor(p, dtype=torch.int32) for p in ([0, 30, 30, 70], [0, 60, 80, 100])]
    counts = flop_registry[torch.ops.aten._flash_attention_forward]
    expected = counts(q, k, k, *places, 40, 60, 0.0, False, False, out_val=None)
    found = _counted(lambda: runtime.flash_attn_varlen_func(q, k, k, *places))
    assert found == expected == 4 * 4 * 64 * (30 * 60 + 40 * 20)
    with FakeTensorMode() as mode:  # lengths are not known: as if all were alike
        tensors = [mode.from_tensor(t) for t in (q, k, k, *places)]
        found = _counted(lambda: runtime.flash_attn_varlen_func(*tensors))
    assert found == 4 * 4 * 64 * (70 * 100 // 3)


def test_flops_of_packed_queries_over_pages_are_those_of_their_pages() -> None:
    q, cache = torch.randn(70, 4, 64), torch.randn(8, 16, 2, 64)
    places = torch.tensor([0, 30, 70], dtype=torch.int32)
    options = {"block_table": torch.zeros(2, 3, dtype=torch.int32), "seqused_k": places[1:]}
    found = _counted(
        lambda: runtime.flash_attn_varlen_func(q, cache, cache, places, None, **options)
    )
    assert found == 4 * 4 * 64 * 70 * (3 * 16)


def test_what_counts_flops_and_what_distributes_may_be_imported_later(run_python, tmp_path) -> None:
    script = """
import sys, runtime
assert not {"torch.utils.flop_counter", "torch.distributed.tensor"} & {*sys.modules}
import torch
from torch.utils.flop_counter import FlopCounterMode
import torch.distributed.tensor
assert "runtime.sharding" in sys.modules
q = torch.randn(1, 5, 2, 64)
with FlopCounterMode(display=False) as counter:
    runtime.attention(q, q, q)
assert counter.get_total_flops() == 4 * 2 * 5 * 5 * 64
"""
    run_python(script, tmp_path)

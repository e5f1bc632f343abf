"""What records or transforms what PyTorch does sees the operator, and what it makes computes the
same from other inputs: make_fx, torch.jit.trace, torch.func, modes, torch.export."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from kernel_specs.hstu.hstu_bsa.reference import GateMLP

GATED = runtime.kernels("block_sparse", "cpu")[0].parameters
OPTIONS = {name: GATED[name] for name in ("block_count", "block_size", "mode")}
INFO = runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64 and not causal")[0]


def qkv(length=19):
    return torch.randn(3, 2, length, 4, 64).unbind()


def bhsd(length=19):
    return tuple(t.transpose(1, 2).contiguous() for t in qkv(length))


def gated(length=70):
    shapes = [GATED["attention_dim"]] * 2 + [GATED["linear_dim"]] * 2
    return *(torch.randn(2, length, 4, size) for size in shapes), torch.rand(2, length, 4)


def block_sparse(*tensors):
    return runtime.block_sparse_attention(*tensors, **OPTIONS)


def written(q, k, v):
    o, lse = torch.zeros_like(q), q.new_zeros(q.shape[0], q.shape[2], q.shape[1])
    runtime.kernel(INFO.key)(q, k, v, return_lse=True, out=(o, lse))
    return o + 1, lse


CALLS = {
    "attention": (lambda *t: runtime.attention(*t, causal=True) * 2, qkv),
    "attention with lse": (lambda *t: runtime.attention(*t, return_lse=True), qkv),
    "attention bhsd": (lambda *t: runtime.attention(*t, layout="bhsd").relu(), bhsd),
    "a kernel": (lambda *t: runtime.kernel(INFO.key)(*t, scale=0.5), qkv),
    "a kernel's out": (written, qkv),
    "forward": (lambda *t: runtime.forward(INFO.key, *t), qkv),
    "block_sparse_attention": (block_sparse, gated),
}
every_call = pytest.mark.parametrize(("call", "inputs"), CALLS.values(), ids=CALLS)


def same(actual, expected):
    if isinstance(expected, torch.Tensor):
        return torch.equal(actual, expected)
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def operators(graph):
    return [str(node.target) for node in graph.nodes if str(node.target).startswith("kernelmint.")]


@every_call
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_records_the_operator(call, inputs, mode, pre_dispatch):
    module = make_fx(call, tracing_mode=mode, pre_dispatch=pre_dispatch)(*inputs())
    assert len(operators(module.graph)) == 1
    for tensors in (inputs(), inputs(35) if mode == "symbolic" else inputs()):
        assert same(module(*tensors), call(*tensors))


@every_call
def test_a_trace_of_torchscript_computes_the_same(call, inputs):
    traced = torch.jit.trace(call, inputs())
    assert "kernelmint::" in str(traced.graph)
    for tensors in (inputs(), inputs(35)):
        assert same(traced(*tensors), call(*tensors))


@every_call
def test_export_without_dynamo_records_the_operator(call, inputs):
    class Model(torch.nn.Module):
        def forward(self, *tensors):
            return call(*tensors)

    program = torch.export.export(Model(), inputs(), strict=False)
    assert len(operators(program.graph)) == 1
    tensors = inputs()
    assert same(program.module()(*tensors), call(*tensors))


@every_call
def test_a_dispatch_mode_sees_one_call_and_fake_tensors_run_nothing(call, inputs):
    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    tensors = inputs()
    expected = call(*tensors)
    with Log() as log:
        assert same(call(*tensors), expected)
    assert sum(name.startswith("kernelmint.") for name in log.seen) == 1
    with FakeTensorMode() as mode:
        fake = call(*(mode.from_tensor(t) for t in tensors))
    results = ((r,) if isinstance(r, torch.Tensor) else r for r in (fake, expected))
    for result, real in zip(*results, strict=True):
        assert isinstance(result, FakeTensor)
        assert (result.shape, result.dtype) == (real.shape, real.dtype)


@pytest.mark.parametrize("axis", range(5))
def test_vmap_maps_any_axis_without_a_warning(axis, capfd):
    q, k, v = qkv()
    many = torch.stack([q, 2 * q], axis)
    mapped = torch.func.vmap(runtime.attention, in_dims=(axis, None, None), out_dims=axis)
    expected = torch.stack([runtime.attention(t, k, v) for t in (q, 2 * q)], axis)
    assert torch.equal(mapped(many, k, v), expected)
    captured = capfd.readouterr()
    assert "performance drop" not in captured.out + captured.err


def test_vmap_within_vmap():
    q, k, v = qkv()
    many, more = torch.stack([q, 2 * q]), torch.stack([k, 2 * k, 3 * k], 2)
    inner = torch.func.vmap(runtime.attention, in_dims=(None, 2, None))
    mapped = torch.func.vmap(inner, in_dims=(0, None, None))(many, more, v)
    expected = [[runtime.attention(a, b, v) for b in more.unbind(2)] for a in many]
    assert torch.equal(mapped, torch.stack([torch.stack(row) for row in expected]))


def test_vmap_and_functionalize_write_into_out():
    kernel = runtime.kernel(INFO.key)

    def into(q, k, v, o, lse):
        kernel(q, k, v, return_lse=True, out=(o, lse))
        return o + 1

    q, k, v = qkv()
    many, o, lse = torch.stack([q, 2 * q], 3), torch.zeros(2, *q.shape), torch.zeros(2, 4, 19, 2)
    result = torch.func.vmap(into, in_dims=(3, None, None, 0, 3))(many, k, v, o, lse)
    expected = [kernel(t, k, v, return_lse=True) for t in (q, 2 * q)]
    assert torch.equal(o, torch.stack([e[0] for e in expected]))
    assert torch.equal(lse, torch.stack([e[1] for e in expected], 3))
    assert torch.equal(result, o + 1)
    with pytest.raises(runtime.InvalidArgument, match=r"^o: each of vmap's calls writes it"):
        torch.func.vmap(into, in_dims=(3, None, None, None, 3))(many, k, v, o[0], lse)

    o, lse = torch.zeros_like(q), torch.zeros(2, 4, 19)
    assert torch.equal(torch.func.functionalize(into)(q, k, v, o, lse), expected[0][0] + 1)
    assert same((o, lse), expected[0])
    graph = make_fx(torch.func.functionalize(into))(q, k, v, o, lse).graph
    assert operators(graph) == ["kernelmint.flash_forward.default"]
    with pytest.raises(runtime.InvalidArgument, match=r"^out: got shape"):
        torch.func.functionalize(into)(q, k, v, o[:1], lse)


def test_a_subclass_that_takes_no_operator_is_named():
    class Closed(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return NotImplemented

    q, k, v = qkv()
    closed = torch.Tensor._make_wrapper_subclass(Closed, q.shape, dtype=q.dtype)
    message = "Closed, a tensor subclass with a dispatch of its own, does not take"
    with pytest.raises(runtime.InvalidArgument, match=message):
        runtime.attention(closed, k, v)


def test_the_profiler_names_a_call_by_its_key():
    q, k, v = qkv()
    chosen = runtime.explain_choice(q, k, v).key
    kernel = runtime.kernel(chosen)
    with torch.profiler.profile() as profile:
        kernel(q, k, v)
        kernel(q.clone().requires_grad_(), k, v)
        torch.ops.kernelmint.flash_forward(chosen, q, k, v)
        for _ in range(2):  # the second is found in the extension
            runtime.attention(q, k, v)
    assert [e.count for e in profile.key_averages() if e.key == chosen] == [5]


def test_derivatives_that_there_are_not_are_refused_with_the_reason():
    q, k, v = qkv()

    def loss(q):
        return runtime.attention(q, k, v).sum()

    with pytest.raises(runtime.InvalidArgument, match=r"torch.func cannot differentiate it"):
        torch.func.grad(loss)(q)
    with pytest.raises(runtime.InvalidArgument, match="q: has a tangent of forward-mode"):
        torch.func.jvp(loss, (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(runtime.attention(q, k, v), runtime.attention(q, k, v))
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(runtime.InvalidArgument, match="q: has a tangent of forward-mode"):
            runtime.attention(dual, k, v)


class Jagged(torch.nn.Module):
    """hstu_attention_with_bsa in a model."""

    def __init__(self, **options):
        super().__init__()
        found = runtime.kernels("hstu_bsa", "cpu")[0].parameters
        self.sizes = found["attention_dim"], found["linear_dim"]
        names = ("block_count", "block_size", "mode")
        self.options = {**{name: found[name] for name in names}, **options}
        self.gates = GateMLP(self.sizes[0]).requires_grad_(False)

    def forward(self, q, v, offsets):
        mask = torch.zeros(64, 64, dtype=torch.bool)
        return runtime.hstu_attention_with_bsa(
            2, *self.sizes, q, q, v, v, offsets, mask, self.gates, **self.options
        )

    def inputs(self, rows=70):
        q, v = (torch.randn(rows, 2 * size) for size in self.sizes)
        return q, v, torch.tensor([0, 40, rows])


def compiled(call, inputs, dynamic=None):
    torch.compiler.reset()
    return torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)


def exported(call, inputs, strict=False):
    return torch.export.export(call, inputs, strict=strict).module()


def faked(call, inputs):
    def shapes(*tensors):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = call(*map(mode.from_tensor, tensors))
        for fake, real in zip(fakes, call(*tensors), strict=True):
            assert fake.shape == real.shape
        return call(*tensors)

    return shapes


def mapped(call, inputs):
    both = torch.func.vmap(call)
    return lambda *tensors: [t[0] for t in both(*(torch.stack([x, x]) for x in tensors))]


RECORDED = {
    "compile": compiled,
    "compile, dynamic": lambda call, inputs: compiled(call, inputs, True),
    "export": exported,
    "export, strict": lambda call, inputs: exported(call, inputs, True),
    "make_fx": lambda call, inputs: make_fx(call)(*inputs),
    "jit.trace": torch.jit.trace,
    "functionalize": lambda call, inputs: torch.func.functionalize(call),
    "vmap": mapped,
    "fake": faked,
}


@pytest.mark.parametrize("mode", ["fixed", "literal"])
@pytest.mark.parametrize("record", RECORDED.values(), ids=RECORDED)
def test_sequences_are_recorded_with_a_stated_length(record, mode):
    model, unstated = Jagged(max_length=64, mode=mode), Jagged(mode=mode)
    unstated.gates = model.gates
    if (record, mode) == (mapped, "literal"):  # which the device checks; the kernel, otherwise
        with pytest.raises(runtime.InvalidArgument, match="x_offsets: got one for each of vmap's"):
            record(model, model.inputs())(*model.inputs())
        return
    recorded = record(model, model.inputs())
    inputs = model.inputs()
    assert same(recorded(*inputs), unstated(*inputs))


@pytest.mark.parametrize("record", RECORDED.values(), ids=RECORDED)
def test_sequences_without_a_stated_length_are_refused_by_name(record):
    model = Jagged()
    inputs = model.inputs()
    with pytest.raises(Exception, match="depends on its values") as caught:
        record(model, inputs)(*inputs)
    assert "pass max_length=" in str(caught.value)


def test_a_mode_that_knows_values_needs_no_stated_length():
    model = Jagged()
    inputs = model.inputs()
    expected = model(*inputs)
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        assert same(model(*inputs), expected)


@pytest.mark.parametrize("mode", ["fixed", "literal"])
def test_a_stated_length_changes_no_result_and_is_held_to(mode):
    unstated, stated = Jagged(mode=mode), Jagged(mode=mode, max_length=40)
    stated.gates = unstated.gates
    q, v, offsets = stated.inputs()
    assert same(stated(q, v, offsets), unstated(q, v, offsets))
    for wrong in ([0, 41, 70], [0, 25, 70], [1, 40, 70], [0, 40, 69], [0, 80, 70]):
        with pytest.raises((runtime.InvalidArgument, RuntimeError), match="x_offsets"):
            stated(q, v, torch.tensor(wrong))
    for length in (0, 65):
        with pytest.raises(runtime.InvalidArgument, match=f"max_length is {length}: expected 1"):
            Jagged(mode=mode, max_length=length)(q, v, offsets)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_block_sparse_attention_takes_every_length(strict):
    class Model(torch.nn.Module):
        def forward(self, *tensors):
            return block_sparse(*tensors)

    # From one token more than a block: PyTorch makes a graph of its own for an extent of 1.
    size = GATED["block_size"]
    length = torch.export.Dim("length", min=size + 1, max=4096)
    shapes = {"tensors": ({1: length},) * 5}
    program = torch.export.export(Model(), gated(), dynamic_shapes=shapes, strict=strict).module()
    for tokens in (size + 1, 70, 200):
        tensors = gated(tokens)
        assert same(program(*tensors), block_sparse(*tensors))


def test_gates_under_autocast_and_those_that_ask_for_a_gradient():
    model = Jagged()
    inputs = model.inputs()
    with torch.autocast("cpu", torch.bfloat16):
        assert [t.dtype for t in model(*inputs)] == [torch.float32] * 3
    model.gates.requires_grad_(True)
    with pytest.raises(runtime.InvalidArgument, match="gate_model: its gates require a gradient"):
        model(*inputs)


@pytest.mark.parametrize("name", ["q", "k", "v", "o"])
def test_an_operator_refuses_meta_tensors_beside_others(name):
    """PyTorch takes a call for one of meta tensors if one of them is: it would run nothing."""
    tensors = dict(zip("qkv", qkv(), strict=True))
    tensors["o"] = torch.empty_like(tensors["q"])
    tensors[name] = tensors[name].to("meta")
    if name != "o":
        with pytest.raises(runtime.InvalidArgument, match="expected the device of the first input"):
            torch.ops.kernelmint.flash_forward(INFO.key, *(tensors[n] for n in "qkv"))
    with pytest.raises(runtime.InvalidArgument, match="expected the device of the first input"):
        torch.ops.kernelmint.flash_forward_out(INFO.key, **tensors)


def test_an_operator_takes_meta_tensors_alone():
    q, k, v = (t.to("meta") for t in qkv())
    o, _ = torch.ops.kernelmint.flash_forward(INFO.key, q, k, v)
    assert (o.device.type, o.shape) == ("meta", q.shape)


@pytest.mark.parametrize("length", [0, 19])
def test_a_kernel_gives_functional_tensors_to_its_operator(length):
    tensors = [torch._to_functional_tensor(t) for t in qkv(length)]
    o = runtime.kernel(INFO.key)(*tensors)
    assert torch._is_functional_tensor(o)
    assert same(
        torch._from_functional_tensor(o),
        runtime.kernel(INFO.key)(*map(torch._from_functional_tensor, tensors)),
    )

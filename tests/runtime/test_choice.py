"""One chooser for all fronts: what is wanted, the rows of choices.yaml, the manifest's order."""

import dataclasses
import pickle

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import runtime
from codegen.core.manifest import Choice, SizeRange, TunedRow
from runtime import choice, devices, manifest, open_choice, packs, tensors
from runtime import rows as rows_of

CPU = torch.device("cpu")
F32 = {"dtype": "f32", "d_head": 64, "causal": False}


@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    """Replaces flash_forward's rows, to begin with the tuned ones of the CPU by none, and forgets
    what was chosen: `replaced(choices=…)` those of choices.yaml, `replaced(tuned=…)`."""
    of_name, rows = manifest.family, {"tuned": ()}

    def family(name):
        found = of_name(name)
        if name != "flash_forward":
            return found
        targets = tuple(
            dataclasses.replace(target, tuned=rows["tuned"] if target.name == "cpu" else ())
            for target in found.targets
        )
        choices = rows.get("choices", found.choices)
        return dataclasses.replace(found, targets=targets, choices=choices)

    def use(**others):
        rows.update(others)
        packs.changed()

    monkeypatch.setattr(manifest, "family", family)
    use()
    yield use
    monkeypatch.undo()
    packs.changed()


@pytest.fixture
def rows(replaced):
    """Replaces flash_forward's rows of choices.yaml; `rows(("Sq <= 64", {…}), …)`."""
    return lambda *found: replaced(choices=tuple(Choice(when=w, take=t) for w, t in found))


@pytest.fixture
def tuned(replaced):
    """Replaces the rows that were tuned for flash_forward on the CPU."""
    return lambda *found: replaced(tuned=found)


def tiles(**parameters):
    found = runtime.kernels("flash_forward", "cpu", lambda info: not info.parameters["trace"])
    suiting = [i for i in found if parameters.items() <= i.parameters.items()]
    return list(dict.fromkeys(info.parameters["B_r"] for info in suiting))


def test_without_rows_the_first_of_the_manifests_order_is_taken():
    first = runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64 and not causal")
    assert choice.choose("flash_forward", CPU, F32).info == first[0]
    assert choice.choose("flash_forward", CPU, F32) is choice.choose("flash_forward", CPU, F32)


def test_the_first_row_that_holds_and_that_a_kernel_fits_decides(rows):
    small, large = sorted(tiles(**F32))[:2]
    rows(("Sq <= 10", {"B_r": 7}), ("Sq <= 64", {"B_r": small}), ("True", {"B_r": large}))
    for length, expected in ((9, small), (64, small), (65, large)):
        chosen = choice.choose("flash_forward", CPU, F32, {"Sq": length})
        assert chosen.info.parameters["B_r"] == expected


def test_the_row_that_decided_is_named(rows):
    small, large = sorted(tiles(**F32))[:2]
    rows(("Sq <= 64", {"B_r": 7}), ("Sq > 64", {"B_r": small}), ("True", {"B_r": large}))
    found = choice.explain("flash_forward", CPU, F32, {"Sq": 9})
    assert [entry.verdict for entry in found.considered[:3]] == ["holds", "no", "holds"]
    assert found.considered[-1] == choice.Considered(
        found.key, "taken: the first that fits row 3 of choices.yaml"
    )


def test_a_row_may_be_of_some_devices(rows, monkeypatch):
    rows(("compute_capability in [86, 89]", {"B_r": 64}), ("compute_capability == 0", {"B_r": 7}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 6 + 3 * index))
    monkeypatch.setattr(devices, "name", str)
    monkeypatch.setattr(devices, "why_unavailable", lambda *_: "there is none")
    for device, held in ((CPU, ["no", "holds"]), (torch.device("cuda", 1), ["holds", "no"])):
        found = choice.explain("flash_forward", device, F32, {"Sq": 9})
        assert [entry.verdict for entry in found.considered[:2]] == held


def test_what_is_wanted_comes_before_what_a_row_takes(rows):
    small, large = sorted(tiles(**F32))[:2]
    rows(("Sq <= 64", {"B_r": small, "no_such_parameter": 3}))
    chosen = choice.choose("flash_forward", CPU, {**F32, "B_r": large}, {"Sq": 9})
    assert chosen.info.parameters["B_r"] == large
    left_open = choice.choose("flash_forward", CPU, {**F32, "B_r": None}, {"Sq": 9})
    assert left_open.info.parameters["B_r"] == small


def test_where_nothing_suits_each_candidate_says_why(rows):
    rows(("Sq <= 64", {"B_r": 7}))
    with pytest.raises(runtime.KernelNotFound) as caught:
        choice.choose("flash_forward", CPU, {**F32, "n_warps": 4}, {"Sq": 9})
    message = str(caught.value)
    assert message.startswith("no flash_forward kernel for dtype f32, d_head 64, causal False, ")
    assert "it has no parameter n_warps, B_r is 64, not 7" in message
    assert "runs on a CUDA device" in message
    assert "None can be built with these parameters:\n  target cpu has no parameter" in message
    with pytest.raises(runtime.KernelNotFound, match="its target is cpu, not sm80"):
        choice.choose("flash_forward", CPU, F32, {"Sq": 9}, target="sm80")


def row(key, most, device=None, **values):
    """A row of these parameters' kernels, for Sq up to `most` and any B * H up to 64."""
    info = next(info for info in runtime.kernels("flash_forward") if info.key == key)
    return TunedRow(
        device=device or devices.name(CPU),
        parameters={name: info.parameters[name] for name in F32},
        ranges=(SizeRange(("Sq",), 1, most), SizeRange(("B", "H"), 1, 64)),
        take=key,
        configuration={**info.parameters, **values},
        milliseconds=1.25,
        runner_up="flash_forward.cpu.other",
        runner_up_milliseconds=1.5,
        tie=False,
    )


def keys_of_f32():
    found = runtime.kernels("flash_forward", "cpu", lambda info: not info.parameters["trace"])
    return [info.key for info in found if F32.items() <= info.parameters.items()]


SIZES = {"B": 1, "H": 2, "Hk": 2, "Sk": 9, "D": 64}


def test_the_tuned_row_that_covers_the_sizes_decides_before_other_rows(tuned, rows):
    first, second = keys_of_f32()[:2]
    tuned(row(second, 100), row(first, 200))
    rows(("True", {"B_r": 256}))

    def taken(length, wanted=F32, **sizes):
        return choice.choose("flash_forward", CPU, wanted, {**SIZES, "Sq": length, **sizes})

    assert taken(100).info.key == second
    assert taken(101).info.key == first
    assert taken(100, B=32).info.key == second
    assert taken(100, B=33).info.parameters["B_r"] == 256  # no row covers it
    assert taken(100, {**F32, "causal": True}).info.parameters["B_r"] == 256
    assert taken(100, {**F32, "B_r": 256}).info.key == first  # what is wanted comes first


def test_a_row_of_another_device_does_not_count_and_what_no_row_covers_takes_the_first(tuned):
    first, second = keys_of_f32()[:2]
    tuned(row(second, 100, device="NVIDIA H200"))
    assert choice.choose("flash_forward", CPU, F32, {**SIZES, "Sq": 9}).info.key == first
    tuned(row(second, 100))
    assert choice.choose("flash_forward", CPU, F32, {**SIZES, "Sq": 99}).info.key == second
    assert choice.choose("flash_forward", CPU, F32, {**SIZES, "Sq": 101}).info.key == first


def test_a_row_whose_kernel_is_in_no_pack_says_how_to_build_it(tuned):
    first = keys_of_f32()[0]
    absent = "flash_forward.cpu.f32-d64-r32-c64"
    tuned(dataclasses.replace(row(first, 100), take=absent))
    assert choice.choose("flash_forward", CPU, F32, {**SIZES, "Sq": 9}).info.key == first
    found = choice.explain("flash_forward", CPU, F32, {**SIZES, "Sq": 9})
    assert found.key == first
    assert f"no pack holds it: runtime.kernel({absent!r}, build=True) builds it" in str(found)
    assert found.considered[-1] == choice.Considered(
        first, "taken: no kernel of a row is available, and it is the first that fits"
    )


def test_a_row_that_depends_on_a_size_which_a_front_does_not_tell_is_an_error(tuned):
    tuned(row(keys_of_f32()[1], 100))
    with pytest.raises(runtime.InvalidArgument, match="depends on the size Sq"):
        choice.choose("flash_forward", CPU, F32)


def test_attention_takes_the_row_of_its_sizes_whatever_was_called_before(tuned):
    first, second = keys_of_f32()[:2]
    tuned(row(second, 20))
    for length, key in ((20, second), (21, first), (20, second), (21, first)):
        q, k, v = torch.randn(3, 1, length, 2, 64).unbind()
        assert torch.equal(runtime.attention(q, k, v), runtime.kernel(key)(q, k, v))
        swapped = (t.transpose(1, 2) for t in (q, k, v))
        assert runtime.explain_choice(*swapped, layout="bhsd").key == key


def test_a_front_may_leave_tuned_rows_out(tuned):
    """They may ask for the size of a batch, by which its results must not be told apart."""
    first, second, *_ = keys_of_f32()
    tuned(row(second, 100))
    sizes = {"Sq": 12, "B": 1, "H": 1}
    assert open_choice.take("flash_forward", CPU, F32, sizes, None, True).info.key == second
    assert open_choice.take("flash_forward", CPU, F32, sizes, None, False).info.key == first
    assert choice.explain("flash_forward", CPU, F32, sizes, tuned=False).key == first
    q = torch.randn(1, 12, 1, 64)
    front = runtime.Front("flash_forward", alike, tuned=False)
    given = ((q, q, q), (None, False), (False,), None)
    recorded = []

    def backend(graph, inputs):
        recorded.append(str(graph.code))
        return graph.forward

    torch.compile(lambda: front(*given), fullgraph=True, backend=backend)()
    assert first in recorded[0]
    assert second not in recorded[0]
    assert runtime.explain_call(front, *given).key == first
    assert pickle.loads(pickle.dumps(front)).find(*given[:3], ()).info.key == first


def alike():
    return F32


def test_explain_choice_says_what_was_considered_and_why(tuned):
    first, second = keys_of_f32()[:2]
    tuned(
        row(first, 100, device="NVIDIA H200"),
        row(first, 8),
        dataclasses.replace(row(second, 16), tie=True),
        dataclasses.replace(row(first, 16), parameters={**F32, "causal": True}),
        dataclasses.replace(row(first, 16), parameters={**F32, "d_head": 128}),
    )
    q, k, v = torch.randn(3, 1, 12, 2, 64).unbind()
    found = runtime.explain_choice(q, k, v)
    assert found.key == second
    assert {entry.what: entry.verdict for entry in found.considered} == {
        "flash_decode": "no: 24 query rows over 2 key heads, at most 4 each",
        f"cpu.tuned.yaml, row 2: {first}": "Sq is 12, not in [1, 8]",
        f"cpu.tuned.yaml, row 3: {second}": "covers the call",
        "cpu.tuned.yaml, 1 rows": "of other devices",
        "cpu.tuned.yaml, 2 rows": "for other parameters",
        second: "taken: 1.25 ms, a tie with flash_forward.cpu.other with 1.5 ms",
        "gradients": "flash_backward's kernels",
    }
    assert str(found).startswith(f"{second} on {devices.name(CPU)}\n")
    assert runtime.explain_choice(*torch.randn(3, 1, 17, 2, 64).unbind()).considered[
        -2
    ].verdict == ("taken: no row covers the call, and it is the first that fits")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"layout": "bhds"}, "layout: got 'bhds', expected"), ({"causal": 1}, "causal: got an int")],
)
def test_explain_choice_refuses_what_attention_refuses(options, message):
    q = torch.randn(1, 12, 2, 64)
    for function in (runtime.attention, runtime.explain_choice):
        with pytest.raises(runtime.InvalidArgument, match=message):
            function(q, q, q, **options)


def test_one_compiled_graph_takes_the_kernel_of_each_length(tuned):
    first, second = keys_of_f32()[:2]
    tuned(row(second, 100))
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: runtime.attention(q, k, v), fullgraph=True, backend=backend
    )
    for length in (30, 50, 70, 130, 150):
        q, k, v = torch.randn(3, 1, length, 2, 64).unbind()
        for tensor in (q, k, v):
            torch._dynamo.mark_dynamic(tensor, 1)
        key = second if length <= 100 else first
        assert torch.equal(compiled(q, k, v), runtime.kernel(key)(q, k, v))
    assert len(graphs) == 1


def test_a_graph_names_the_kernel_that_every_row_takes(tuned):
    first, second = keys_of_f32()[:2]
    q, k, v = torch.randn(3, 1, 9, 2, 64).unbind()
    for found, keys in (((row(first, 8), row(first, 100)), [first]), ((row(second, 8),), [])):
        tuned(*found)
        torch.compiler.reset()
        taken = []

        def backend(graph, inputs, taken=taken):
            operators = [n for n in graph.graph.nodes if "kernelmint" in str(n.target)]
            taken += [n.args[0] for n in operators if n.args[0] in (first, second)]
            return graph.forward

        compiled = torch.compile(runtime.attention, fullgraph=True, backend=backend)
        assert torch.equal(compiled(q, k, v), runtime.kernel(first)(q, k, v))
        assert taken == keys


@pytest.mark.parametrize("record", ["make_fx", "export", "export strict"])
def test_a_graph_with_symbolic_sizes_takes_the_kernel_of_each_length(tuned, record):
    first, second = keys_of_f32()[:2]
    tuned(row(second, 100), row(second, 120))

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return runtime.attention(q, k, v)

    q, k, v = torch.randn(3, 1, 70, 2, 64).unbind()
    if record == "make_fx":
        traced = make_fx(Model(), tracing_mode="symbolic")(q, k, v)
    else:
        length = torch.export.Dim("length", min=2, max=4096)
        shapes = ({1: length},) * 3
        traced = torch.export.export(
            Model(), (q, k, v), dynamic_shapes=shapes, strict=record == "export strict"
        ).module()
    for length, key in ((30, second), (70, second), (110, second), (130, first)):
        q, k, v = torch.randn(3, 1, length, 2, 64).unbind()
        assert torch.equal(traced(q, k, v), runtime.kernel(key)(q, k, v))


def test_a_target_whose_requirement_of_memory_is_not_met_is_passed_over(monkeypatch):
    """Kernels of sm90a take no tensor that is expanded along the sequence; those of sm80 do."""
    for name in ("why_unavailable", "why_too_large", "why_unsuitable"):
        monkeypatch.setattr(devices, name, lambda *_: None)
    monkeypatch.setattr(devices, "name", str)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    packs.changed()
    q, k, v = (torch.randn(2, 9, 4, 64) for _ in "qkv")
    gpu, wanted = torch.device("cuda", 0), {"dtype": "bf16", "causal": False}
    memory = rows_of.of("flash_forward").memory
    for inputs, target in (
        ((q, k, v), "sm90a"),
        ((q, k[:, :1].expand(-1, 9, -1, -1), v), "sm80"),
        ((q[:, :1].expand(-1, 9, -1, -1), k, v), "sm80"),
        ((q[:, :1].expand(-1, 1, -1, -1), k, v), "sm90a"),
        ((q, k[:, :, :1].expand(-1, -1, 4, -1), v), "sm90a"),
    ):
        sizes = {"B": 2, "Sq": 9, "Sk": 9, "H": 4, **tensors.expanded(inputs, memory)}
        taken = open_choice.take("flash_forward", gpu, {**wanted, "d_head": 64}, sizes, None, True)
        assert taken.info.target == target
        explained = choice.explain("flash_forward", gpu, {**wanted, "d_head": 64}, sizes)
        assert explained.key == taken.info.key
        # Only sm90a has kernels of this head dimension: it says itself what it requires.
        taken = open_choice.take("flash_forward", gpu, {**wanted, "d_head": 96}, sizes, None, True)
        assert taken.info.target == "sm90a"
        expanded = target == "sm80"
        assert ("requires not expanded" in str(explained)) == expanded


def test_fronts_are_found_through_the_packs():
    all_fronts = packs.fronts()  # of what other tests loaded, too
    found = {f.function: f.module for pack, f in all_fronts if pack.name == "kernelmint"}
    assert found == {
        **dict.fromkeys(
            ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
            "kernel_specs.attention.flash_attn",
        ),
        "attention": "kernel_specs.attention.front",
        "explain_choice": "kernel_specs.attention.front",
        "sdpa": "kernel_specs.attention.sdpa",
        "forward": "kernel_specs.attention.front",
        "forward_timed": "kernel_specs.attention.front",
        "decode": "kernel_specs.attention.front",
        "block_sparse_attention": "kernel_specs.hstu.block_sparse.front",
        "hstu_attention_with_bsa": "kernel_specs.hstu.hstu_bsa.front",
        "attention_backward": "",  # generated
    }
    assert set(found) <= set(runtime.__all__) & set(dir(runtime))
    with pytest.raises(AttributeError, match="module 'runtime' has no attribute 'no_such'"):
        _ = runtime.no_such


@pytest.mark.gpu
def test_few_blocks_are_taken_by_tiles_and_many_by_blocks():
    info = runtime.kernels("block_sparse", "sm80", "schedule == tiles")[0].parameters
    names = ("attention_dim", "linear_dim", "block_size", "block_count", "mode", "dot")
    wanted = {name: info[name] for name in names}
    device = torch.device("cuda", 0)
    for length, heads, schedule in ((2048, 24, "tiles"), (2049, 24, "blocks"), (64, 25, "blocks")):
        facts = {"T": length, "H": heads}
        chosen = choice.choose("block_sparse", device, wanted, facts)
        assert chosen.info.parameters["schedule"] == schedule


def test_sm_count_is_the_devices_and_a_constant_of_graphs(monkeypatch):
    monkeypatch.setattr(devices, "facts", lambda index: (100 + index, 0))
    assert runtime.sm_count(torch.device("cuda:1")) == 101
    assert runtime.sm_count(CPU) == torch.get_num_threads()
    compiled = torch.compile(
        lambda x: x * runtime.sm_count(x.device), fullgraph=True, backend="eager"
    )
    assert compiled(torch.ones(())).item() == torch.get_num_threads()


def test_what_is_traced_as_constant_is_called_once_a_graph():
    asked = []

    @runtime.traced_as_constant
    def read() -> int:
        asked.append(open)  # which cannot be traced
        return 3

    compiled = torch.compile(lambda x: x * read(), fullgraph=True, backend="eager")
    assert [compiled(torch.ones(())).item() for _ in range(3)] == [3, 3, 3]
    assert len(asked) == 1


def test_a_front_that_fails_when_it_is_imported_says_why(monkeypatch):
    """A KeyError of its module is not the runtime's lookup of a name."""

    def importing(*_):
        raise KeyError("a table of its own")

    monkeypatch.setattr(packs, "specs_function", importing)
    with pytest.raises(KeyError, match="a table of its own"):
        runtime.__getattr__("attention")
    with pytest.raises(AttributeError, match="no attribute 'attentoin'"):
        runtime.__getattr__("attentoin")


def test_an_operator_refuses_another_familys_key():
    key = next(info.key for info in runtime.kernels("hstu_bsa", "cpu"))
    q = torch.ones(1, 3, 1, 64)
    with pytest.raises(
        runtime.InvalidArgument,
        match=rf"key: got {key}, a kernel of hstu_bsa, expected one of flash_forward",
    ):
        torch.ops.kernelmint.flash_forward(key, q, q, q)


@pytest.mark.parametrize(
    "key", ["{", "{}", '{"family": 1}', '{"family": "x", "wanted": {}, "target": null}']
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_operator_refuses_what_no_graph_recorded(key, device):
    q = torch.ones(1, 3, 1, 64, device=device)
    with pytest.raises(runtime.InvalidArgument, match=r"^key: got .*, expected a kernel's key"):
        torch.ops.kernelmint.flash_forward(key, q, q, q)


def test_a_call_is_explained_with_all_of_its_arguments_and_is_not_made():
    q = torch.randn(1, 9, 2, 64)
    assert runtime.explain_call(runtime.attention, q, q, q, layout="bshd").key == keys_of_f32()[0]
    q, cache, lengths = q[:, :1], torch.randn(1, 40, 2, 64), torch.tensor([7], dtype=torch.int32)
    out = torch.zeros_like(q)
    found = runtime.explain_call(
        runtime.decode, q, cache, cache, seqused_k=lengths, return_lse=False, out=out
    )
    assert (found.family, found.considered[-1].verdict) == (
        "flash_decode", "taken: the first that fits row 4 of choices.yaml"
    )  # fmt: skip
    assert not out.any()
    upstream = runtime.explain_call(runtime.flash_attn_with_kvcache, q, cache, cache)
    assert upstream.key == found.key
    assert torch.equal(  # others are made again
        runtime.decode(q, cache, cache), runtime.kernel(found.key)(q, cache, cache)
    )


def test_what_cannot_be_explained_is_refused():
    q = torch.randn(1, 1, 2, 64)
    with pytest.raises(runtime.InvalidArgument, match="explain_call: randn picks no kernel"):
        runtime.explain_call(torch.randn, 3)
    with pytest.raises(runtime.InvalidArgument, match="window_size: got 3"):
        runtime.explain_call(runtime.decode, q, q, q, window_size=3)
    assert runtime.decode(q, q, q).shape == q.shape

"""families, targets, kernels, kernel, forward: finding a kernel, and what a miss says."""

import csv
import dataclasses
import enum
import inspect
import re

import numpy as np
import pytest
import torch

import runtime
from runtime import InvalidArgument, KernelNotFound, TargetUnavailable, manifest, packs


@pytest.fixture
def cpu_info():
    """A built float32 kernel of flash_forward on the CPU."""
    return runtime.kernels("flash_forward", "cpu", "dtype == 'f32' and not causal")[0]


def qkv(info, batch=1, length=9, heads=2):
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    shape = batch, length, heads, info.parameters["d_head"]
    return torch.randn(3, *shape).to(dtype[info.parameters["dtype"]]).unbind()


def test_families_and_targets():
    assert "flash_forward" in runtime.families()
    assert {"cpu", "sm80"} <= set(runtime.targets())


def test_kernels_lists_every_generated_kernel_once_in_the_manifests_order():
    keys = [info.key for info in runtime.kernels()]
    assert len(set(keys)) == len(keys)
    listed = [
        kernel.key
        for family in manifest.families()
        for target in family.targets
        for kernel in target.kernels
    ]
    assert keys == listed


def test_kernel_info(cpu_info):
    assert cpu_info.key.startswith("flash_forward.cpu.f32-d")
    assert cpu_info.parameters["dtype"] == "f32"
    assert (cpu_info.built, cpu_info.available, cpu_info.reason) == (True, True, None)
    assert cpu_info.registers is None
    assert cpu_info.spills is None


def test_registers_and_spills_come_from_ptxas():
    kernels = runtime.kernels("flash_forward", "sm80")
    with_cuda = [info for info in kernels if info.built]
    if not with_cuda:
        assert all(info.reason.startswith("built without CUDA") for info in kernels)
        return
    with packs.of("flash_forward").ptxas.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for info in with_cuda:
        used = [int(r["used_registers"]) for r in rows if r["kernel_config"] == info.key]
        assert info.registers == max(used)
        assert info.spills is not None


def test_where_filters_by_parameters_derived_values_family_and_target():
    chosen = runtime.kernels(where="d_head == 64 and target == 'cpu' and dtype in ['f32', 'bf16']")
    assert chosen
    for info in chosen:
        assert (info.target, info.parameters["d_head"]) == ("cpu", 64)
    assert chosen == runtime.kernels(
        where=lambda i: i.target == "cpu" and i.key.split(".")[2][:4] in ("f32-", "bf16")
        and i.parameters.get("d_head") == 64
    )  # fmt: skip
    assert runtime.kernels(where="False") == []


def test_where_leaves_out_kernels_that_lack_a_name():
    found = runtime.kernels("flash_forward", where="n_warps == 4")
    assert {info.target for info in found} == {"sm80"}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("d_hed == 64", "'d_hed == 64': unknown name 'd_hed' (did you mean 'd_head'?)"),
        ("d_head ==", "'d_head ==': not an expression"),
        ("__import__('os')", "unknown function '__import__'"),
        ("dtype.upper() == 'F32'", "unknown function 'dtype.upper'"),
        ("[d for d in [1]]", "is not part of the expression language"),
        ("(lambda: 1)()", "unknown function"),
        ("d_head", "'d_head' must be true or false"),
        ("dtype == 'bf61'", "'bf61' is not among its values (did you mean 'bf16'?)"),
        ("9**9**9 > 1", "exceeds 64 bits"),
        ("9**999 > 1", "exceeds 64 bits"),
        ("d_head ** 9999 > 1", "exceeds 64 bits"),
        ("[0] * 10**9 == 3", "is a list, not a number"),
        ("1 // (d_head - d_head) == 1", "has no value for"),
        ("10.0 ** (d_head * 99) > 1", "has no value for"),
        ("not " * 5000 + "True", "at most 2000 characters"),
        ("-" * 90 + "1 == 1", "nests at most 60 levels deep"),
        ("d_head == 64 \0", "not an expression"),
        (3, "where: got an int, expected an expression or a function"),
    ],
)
def test_a_wrong_filter(where, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        runtime.kernels(where=where)


def test_a_filter_means_what_it_does_to_codegen():
    """Values of dtypes and enums need no quotes; so it is in specs and in `kernelmint list`."""
    assert runtime.kernels(where="dtype == bf16") == runtime.kernels(where="dtype == 'bf16'")
    bare = runtime.kernels("block_sparse", where="mode == literal")
    assert {info.parameters["mode"] for info in bare} == {"literal"}


def test_an_unknown_family_or_target():
    with pytest.raises(InvalidArgument, match="did you mean 'flash_forward'"):
        runtime.kernels("flash_forwad")
    with pytest.raises(InvalidArgument, match="unknown target: 'sm81'"):
        runtime.kernels(target="sm81")
    for wrong in (3, ["cpu"], torch.zeros(2), {}):
        with pytest.raises(InvalidArgument, match=r"family: got an? \w+, expected one of "):
            runtime.kernels(wrong)


def test_kernel_resolves_once(cpu_info):
    kernel = runtime.kernel(cpu_info.key)
    assert runtime.kernel(cpu_info.key) is kernel
    assert kernel.info == cpu_info
    assert repr(kernel) == f"<FlashForward {cpu_info.key}>"


def test_the_first_look_up_of_a_key_does_as_much_among_ten_thousand_kernels(run_python, tmp_path):
    script = """
import dataclasses, sys
import runtime
from runtime import manifest, packs

keys = [i.key for i in runtime.kernels("flash_forward", "cpu", "dtype == f32") if i.available]

def lines(key):
    count = 0
    def trace(frame, event, argument):
        nonlocal count
        count += 1
        return trace
    sys.settrace(trace)
    runtime.kernel(key)
    sys.settrace(None)
    return count

lines(keys[0])
few = lines(keys[1])
read = manifest._families(packs.of("flash_forward"))._read
def grown(target):
    others = [
        dataclasses.replace(kernel, key=f"{kernel.key}-{i}")
        for i in range(10_000 // len(target.kernels) + 1)
        for kernel in target.kernels
    ]
    return dataclasses.replace(target, kernels=(*others, *target.kernels))
family = manifest.family("flash_forward")
read["flash_forward"] = dataclasses.replace(family, targets=tuple(map(grown, family.targets)))
for function in (manifest._by_key, manifest._merged):
    function.cache_clear()
lines(keys[2])  # of which one reads the manifest
assert len(runtime.kernels("flash_forward", "cpu")) > 10_000
assert lines(keys[3]) == few, few
"""
    run_python(script, tmp_path)


def test_a_bare_launch_is_made_as_often_as_asked(cpu_info):
    kernel = runtime.kernel(cpu_info.key)
    q, k, v = qkv(cpu_info)
    out = torch.full_like(q, float("nan"))
    kernel._native.launch_times((q, k, v), (None, None), (False,), out, 3)
    assert torch.equal(out, kernel(q, k, v))


def test_an_unknown_key_names_what_is_built_the_nearest_and_the_command(cpu_info):
    wanted = cpu_info.key.replace("-c128", "-c160")  # which its spec allows
    with pytest.raises(KernelNotFound) as caught:
        runtime.kernel(wanted)
    message = str(caught.value)
    assert isinstance(caught.value, KeyError)
    assert message.startswith(f"{wanted}: ")
    assert "kernels of flash_forward built" in message
    assert cpu_info.key in message.partition("Nearest built: ")[2]
    assert f"kernelmint explain '{wanted}'" in message
    assert "pip install ." in message
    with pytest.raises(KernelNotFound, match=r"^no_such\.cpu\.x: no family 'no_such'; families: "):
        runtime.kernel("no_such.cpu.x")
    with pytest.raises(KernelNotFound, match="no target 'sm1'; targets: "):
        runtime.kernel("flash_forward.sm1.x")


def test_a_kernel_that_this_build_left_out_says_why():
    left_out = [info for info in runtime.kernels() if not info.built]
    for info in left_out[:1]:
        with pytest.raises(TargetUnavailable, match=re.escape(info.key)) as caught:
            runtime.kernel(info.key)
        assert "pip install ." in str(caught.value)
    if not left_out:
        for pack in packs.all_packs():
            held = set().union(*(packs.library(pack, family).keys() for family in pack.families))
            assert held == {key for key in manifest_keys() if key.split(".")[0] in pack.families}


def manifest_keys():
    return [info.key for info in runtime.kernels()]


def test_exceptions_are_what_python_calls_them():
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(TargetUnavailable, RuntimeError)
    assert InvalidArgument.__module__ == "runtime"


def test_timed_returns_the_result_and_milliseconds(cpu_info):
    q, k, v = qkv(cpu_info)
    kernel = runtime.kernel(cpu_info.key)
    result, milliseconds = kernel.timed(q, k, v)
    assert torch.equal(result, kernel(q, k, v))
    assert 0 < milliseconds < 60_000


class Dtype(enum.Enum):
    FP16 = 1
    F32 = 2


def test_forward_takes_a_key_a_mapping_or_a_dataclass(cpu_info):
    q, k, v = qkv(cpu_info)
    expected = runtime.kernel(cpu_info.key)(q, k, v)
    fields = {**cpu_info.parameters, "dtype": Dtype.F32}
    config = dataclasses.make_dataclass("Config", fields)(**fields)
    mapping = {**cpu_info.parameters, "target": "cpu", "dtype": torch.float32}
    for chosen in (cpu_info.key, mapping, config):
        assert torch.equal(runtime.forward(chosen, q, k, v), expected)
        o = torch.full_like(q, float("nan"))
        assert runtime.forward(chosen, q, k, v, o) is o
        assert torch.equal(o, expected)
        result, milliseconds = runtime.forward_timed(chosen, q, k, v, scale=2.0)
        assert torch.equal(result, runtime.forward(chosen, q, k, v, scale=2.0))
        assert milliseconds > 0


def test_a_configuration_that_was_found_is_not_mistaken_for_a_wrong_one_that_equals_it(cpu_info):
    right = {"family": "flash_forward", "target": "cpu", **cpu_info.parameters}
    for _ in range(2):
        assert runtime.kernel(right).info.key == cpu_info.key
    with pytest.raises(runtime.InvalidArgument, match="d_head: got a float"):
        runtime.kernel({**right, "d_head": float(right["d_head"])})
    with pytest.raises(runtime.InvalidArgument, match="d_head: got a list"):
        runtime.kernel({**right, "d_head": [right["d_head"]]})


def test_a_parameter_that_a_configuration_leaves_out_takes_its_default():
    whole = {"dtype": "bf16", "d_head": 64, "B_r": 64, "B_c": 256, "causal": True, "trace": False}
    key = runtime.kernel({**whole, "target": "cpu"}).info.key
    assert key == "flash_forward.cpu.bf16-d64-causal-r64-c256"
    short = {name: whole[name] for name in ("dtype", "d_head", "B_r", "B_c")}
    assert runtime.kernel({**short, "causal": True, "target": "cpu"}).info.key == key
    assert runtime.kernel({**short, "target": "cpu"}).info.key == key.replace("causal-", "")


def test_a_configuration_that_fits_nothing_or_several(cpu_info):
    with pytest.raises(KernelNotFound, match="no kernel was generated for d_head=7"):
        runtime.kernel({"d_head": 7})
    with pytest.raises(KernelNotFound, match=r"leaves .* kernels; name more parameters"):
        runtime.kernel({"dtype": "bf16"})
    with pytest.raises(
        InvalidArgument, match=r"unknown parameter: 'dhead' \(did you mean 'd_head'"
    ):
        runtime.kernel({"dhead": 64})
    with pytest.raises(InvalidArgument, match="got an int, expected a key, a mapping or a datacl"):
        runtime.kernel(3)
    for value in (None, 64.0, torch.tensor(64), np.arange(2), [64]):
        with pytest.raises(InvalidArgument, match=r"d_head: got an? \w+, expected an int"):
            runtime.kernel({"d_head": value})
    with pytest.raises(InvalidArgument, match="parameter: got an int"):
        runtime.kernel({3: 64})


def test_a_key_of_a_million_characters_is_refused_in_a_short_message(cpu_info):
    for key in (cpu_info.key + "7" * 10**6, "a" * 10**6, ".".join("ab" * 10**6), "(FP16, " * 10**5):
        with pytest.raises(KernelNotFound, match=r"[Nn]earest") as caught:
            runtime.kernel(key)
        assert len(str(caught.value)) < 3000


def test_a_call_that_does_not_suit_names_the_kernel_and_what_it_takes(cpu_info):
    kernel = runtime.kernel(cpu_info.key)
    q = torch.zeros(1, 4, 2, 64)
    for call, wrong in (
        (lambda: kernel(q, q), "missing 1 required positional argument: 'v'"),
        (lambda: kernel(), "missing 3 required positional arguments: 'q', 'k', and 'v'"),
        (lambda: kernel.timed(q, v=q), "missing 1 required positional argument: 'k'"),
        (lambda: kernel(q, q, q, foo=1), "got an unexpected keyword argument 'foo'"),
        (lambda: kernel(q, q, q, 0.5), "takes 4 positional arguments but 5 were given"),
        (lambda: kernel(q, k=q, q=q), "got multiple values for argument 'q'"),
        (lambda: runtime.forward(cpu_info.key, q, q, q, foo=1), "got an unexpected keyword"),
    ):
        with pytest.raises(TypeError) as error:
            call()
        known = (
            "takes (q, k, v, *, scale=None, deterministic=None, return_lse=False, out=None): "
            "__call__()"
        )
        assert str(error.value).startswith(f"{cpu_info.key} {known} {wrong}")
    with pytest.raises(TypeError, match=rf"^{re.escape(cpu_info.key)} takes \(q, .*: trace\(\) "):
        kernel.trace(q, q, foo=1)


def test_a_kernels_class_is_its_familys(cpu_info):
    kernel, family = (
        runtime.kernel(cpu_info.key),
        packs.face(packs.owner(cpu_info.family), cpu_info.family),
    )
    assert isinstance(kernel, family)
    assert inspect.signature(kernel) == inspect.signature(family.__call__.__get__(kernel))
    assert repr(kernel) == f"<FlashForward {cpu_info.key}>"
    assert kernel.__doc__ == family.__doc__


@pytest.mark.parametrize("forward", [runtime.forward, runtime.forward_timed])
def test_the_outputs_memory_is_o_to_forward(cpu_info, forward):
    q = torch.zeros(1, 4, 2, 64)
    with pytest.raises(TypeError, match="unknown argument out: these"):
        forward(cpu_info.key, q, q, q, out=q)

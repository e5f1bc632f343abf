"""What is said where no kernel suits: the nearest first, and only advice that works."""

import pytest
import torch

import runtime
from runtime import ondemand, packs

CPU = {"family": "flash_forward", "target": "cpu"}


def not_found(call, *arguments, **options):
    with pytest.raises(runtime.KernelNotFound) as caught:
        call(*arguments, **options)
    return str(caught.value)


def attention(d_head, dtype=torch.float32):
    q, k, v = torch.ones(3, 1, 2, 1, d_head).to(dtype).unbind()
    return runtime.attention(q, k, v)


def key_of(dtype="f32", d_head=64):
    where = f"dtype == {dtype} and d_head == {d_head} and not causal and not trace"
    return runtime.kernels("flash_forward", "cpu", where)[0].key


@pytest.fixture(autouse=True)
def without_setting(monkeypatch):
    monkeypatch.delenv("KERNELMINT_BUILD", raising=False)


def test_the_nearest_kernel_is_named_first():
    first = not_found(attention, 96).partition("\n")[0]
    assert first.startswith("no flash_forward kernel for dtype f32, d_head 96, causal False on cpu")
    assert f"Nearest: {key_of()}" in first
    assert "d_head is 64, not 96" in first
    assert f"Nearest: {key_of(d_head=128)}" in not_found(attention, 160).partition("\n")[0]


@pytest.mark.parametrize(
    ("d_head", "dtype", "reason"),
    [
        (80, torch.float32, "d_head % 32 == 0: the widest panels"),
        (64, torch.float64, "'f64' is not among the values of dtype"),
    ],
)
def test_what_a_spec_excludes_is_not_advised(d_head, dtype, reason):
    name = "f64" if dtype == torch.float64 else "f32"
    key = key_of().replace("f32-d64", f"{name}-d{d_head}")
    config = {**CPU, **runtime.kernel(key_of()).info.parameters, "dtype": name, "d_head": d_head}
    for message in (
        not_found(attention, d_head, dtype),
        not_found(runtime.kernel, key),
        not_found(runtime.kernel, config),
    ):
        assert reason.partition(":")[0] in message
        for advice in ("build=True", "pip install", "add a configuration", "KERNELMINT_BUILD"):
            assert advice not in message


def test_what_a_spec_allows_names_the_call_that_builds_it():
    key = key_of().replace("-d64-", "-d96-")
    config = {**CPU, **runtime.kernel(key_of()).info.parameters, "d_head": 96}
    for call in ((attention, 96), (runtime.kernel, key), (runtime.kernel, config)):
        assert f"runtime.kernel({key!r}, build=True) builds" in not_found(*call)


class Refusing:
    def __hash__(self):
        raise ValueError("refused")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({None: 1}, "parameter: got a NoneType, expected its name"),
        ({"d_head": Refusing()}, "d_head: got a Refusing, expected an int"),
        ({"d_head": "64"}, "'64' is not an int"),
    ],
)
def test_a_configuration_of_what_no_parameter_is(wrong, message):
    with pytest.raises((runtime.InvalidArgument, runtime.KernelNotFound)) as caught:
        runtime.kernel({**CPU, **runtime.kernel(key_of()).info.parameters, **wrong})
    assert message in str(caught.value)


def test_explain_says_what_the_command_says():
    assert runtime.explain(key_of()).startswith(f"{key_of()} is built")
    excluded = runtime.explain(key_of().replace("-d64-", "-d80-"))
    assert "is excluded" in excluded
    assert "the widest panels" in excluded
    assert "is not a valid key" in runtime.explain("flash_forward.cpu.f32-nonsense")
    assert "no family" in not_found(runtime.explain, "flash_foreward.cpu.f32")
    with pytest.raises(runtime.InvalidArgument, match="key: got an int"):
        runtime.explain(3)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    yield
    packs._registry().singles.pop("flash_forward", None)
    packs.changed()


@pytest.mark.build
@pytest.mark.parametrize("way", ["attention", "configuration"])
def test_what_is_asked_for_without_a_key_is_built_as_keys_are(cache, monkeypatch, way):
    monkeypatch.setenv("KERNELMINT_BUILD", "missing")
    assert ondemand.builds("flash_forward", None)
    q, k, v = torch.randn(3, 1, 5, 2, 96).unbind()
    if way == "attention":
        o = runtime.attention(q, k, v)
    else:
        config = {**CPU, **runtime.kernel(key_of()).info.parameters, "d_head": 96}
        o = runtime.forward(config, q, k, v)
    swapped = (t.transpose(1, 2) for t in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*swapped).transpose(1, 2)
    torch.testing.assert_close(o, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("mask", "no kernel takes a mask; pass causal=True"),
        ("attn_mask", "no kernel takes a mask; pass causal=True"),
        ("is_causal", "pass causal="),
        ("softmax_scale", "pass scale="),
        ("window_size", "kernelmint.flash_attn_func has one"),
        ("nonsense", "it takes causal, scale, layout, return_lse, out, deterministic and dr"),
    ],
)
def test_an_argument_of_another_function_is_refused_with_what_to_pass(name, instead):
    q = torch.ones(1, 2, 1, 64)
    with pytest.raises(TypeError, match=f"attention: unknown argument {name}: {instead}"):
        runtime.attention(q, q, q, **{name: None})


def test_no_heads_are_refused_as_such():
    q, none = torch.ones(1, 2, 1, 64), torch.ones(1, 2, 0, 64)
    with pytest.raises(runtime.InvalidArgument, match=r"^k: got 0 heads, expected a number that"):
        runtime.attention(q, none, none)
    with pytest.raises(runtime.InvalidArgument, match=r"^k_cache: got 0 heads, expected a number"):
        runtime.decode(q, none, none)
    with pytest.raises(runtime.InvalidArgument, match="requires Hk > 0"):
        runtime.kernel(key_of())(q, none, none)

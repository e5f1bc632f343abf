"""transformers' models of random weights on our kernels, beside transformers' own "eager".

On the CPU in fp32 and bf16; on a GPU in bf16, since no kernel takes fp32 there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import runtime
from kernelmint.integrations import transformers as integration
from tests.slow import slow_after

transformers = pytest.importorskip("transformers", minversion="5")
if not transformers.utils.is_torch_available():
    pytest.skip("transformers takes a newer PyTorch", allow_module_level=True)

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "gemma2": ("Gemma2", {"sliding_window": 16, "attn_logit_softcapping": 2.0,
                          "query_pre_attn_scalar": 16}),
    "gpt-oss": ("GptOss", {"sliding_window": 16, "num_local_experts": 2,
                           "num_experts_per_tok": 2}),  # all: rounding chooses none
}  # fmt: skip
LENGTHS = (40, 7, 23)
IN_FP32 = pytest.param("cpu", torch.float32, id="cpu-fp32")
IN_BF16 = pytest.param("cpu", torch.bfloat16, id="cpu-bf16")
ON_GPU = pytest.param("cuda", torch.bfloat16, id="cuda-bf16", marks=pytest.mark.gpu)
EVERYWHERE = pytest.mark.parametrize(("device", "dtype"), [IN_FP32, IN_BF16, ON_GPU])
EXACT = pytest.mark.parametrize(("device", "dtype"), [IN_FP32, ON_GPU])
ROUNDED = pytest.mark.parametrize(("device", "dtype"), [IN_BF16, ON_GPU])
EACH = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module", autouse=True)
def active() -> Iterator[None]:
    integration.activate()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small wait for a second thread longer than they take
    yield
    torch.set_num_threads(threads)


@functools.cache
def model(
    name: str, implementation: str, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Any:
    kind, options = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**SIZES, **options)
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter_name, parameter in made.named_parameters():
        if "sinks" in parameter_name:
            torch.nn.init.normal_(parameter)
    made.set_attn_implementation(implementation)
    return made.to(device, dtype)


def three(name: str, device: str, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """The same model on our kernels, eager, and eager in fp32."""
    return (
        model(name, "kernelmint", dtype, device),
        model(name, "eager", dtype, device),
        model(name, "eager", torch.float32, device),
    )


def close(got: Tensor, eager: Tensor, exact: Tensor) -> None:
    """Ours are as near to fp32's as eager's are, and in fp32 the same but for rounding."""
    assert got.shape == exact.shape
    if got.dtype == torch.float32:
        torch.testing.assert_close(got, eager, rtol=2.0**-14, atol=2.0**-14)
        return
    largest = (eager - exact).abs().max()
    half_a_unit = 2.0**-9 * exact.abs().max()  # of the greatest result, by which any may round
    assert (got - exact).abs().max() <= 2 * largest + half_a_unit


def tokens(*shape: int, device: str = "cpu") -> Tensor:
    return torch.randint(1, 97, shape).to(device)


def positions(device: str) -> Tensor:
    """Of packed sequences."""
    return torch.cat([torch.arange(n) for n in LENGTHS])[None].to(device)


def batch(side: str, device: str = "cpu") -> dict[str, Tensor]:
    """Sequences of unequal lengths, padded on this side."""
    ids, mask = tokens(3, max(LENGTHS)), torch.ones(3, max(LENGTHS)).long()
    for row, length in enumerate(LENGTHS):
        pad = max(LENGTHS) - length
        hidden = slice(0, pad) if side == "left" else slice(length, None)
        ids[row, hidden] = mask[row, hidden] = 0
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


@torch.no_grad()
def compare(
    name: str, device: str, dtype: torch.dtype, inputs: dict[str, Any], where: Tensor
) -> None:
    close(*(each(**inputs).logits[where] for each in three(name, device, dtype)))


@EVERYWHERE
@pytest.mark.parametrize("side", ["left", "right"])
@EACH
def test_padded_batches(name: str, side: str, device: str, dtype: torch.dtype) -> None:
    inputs = batch(side, device)
    compare(name, device, dtype, inputs, inputs["attention_mask"].bool())


def alone(eager: Any, ids: Tensor) -> Tensor:
    """The logits of packed sequences, each computed by itself."""
    return torch.cat([eager(part, use_cache=False).logits for part in ids.split(LENGTHS, 1)], 1)


@EVERYWHERE
@pytest.mark.parametrize("use_cache", [False, True])
@EACH
def test_packed_sequences_by_their_positions(
    name: str, use_cache: bool, device: str, dtype: torch.dtype
) -> None:
    """Each is what it is alone, of models too that pass their masks no positions, as gpt-oss."""
    ids = tokens(1, 70, device=device)
    ours, *eagers = three(name, device, dtype)
    with torch.no_grad():
        got = ours(input_ids=ids, position_ids=positions(device), use_cache=use_cache).logits
        close(got, *(alone(eager, ids) for eager in eagers))


def test_positions_do_not_count_beside_an_attention_mask() -> None:
    """transformers' rule, for every implementation: the mask says that there is one sequence."""
    inputs = {
        "input_ids": tokens(1, 70), "position_ids": positions("cpu"),
        "attention_mask": torch.ones(1, 70).long(),
    }  # fmt: skip
    for name in ("llama", "gpt-oss"):
        compare(name, "cpu", torch.float32, inputs, torch.ones(1, 70, dtype=torch.bool))


@EXACT
@EACH
def test_packed_sequences_by_their_places(name: str, device: str, dtype: torch.dtype) -> None:
    """As a trainer's collator passes them: each is what it is alone."""
    ids = tokens(1, 70, device=device)
    ends = torch.tensor([0, 40, 47, 70], dtype=torch.int32, device=device)
    ours, *eagers = three(name, device, dtype)
    with torch.no_grad():
        got = ours(
            input_ids=ids, position_ids=positions(device), cu_seq_lens_q=ends, cu_seq_lens_k=ends,
            max_length_q=40, max_length_k=40, use_cache=False,
        ).logits  # fmt: skip
        close(got, *(alone(eager, ids) for eager in eagers))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@EACH
def test_the_same_greedy_tokens_for_200_steps(name: str, cache: str) -> None:
    """Caches of layers with a window slide; a batch of unequal lengths is padded on the left."""
    inputs = batch("left")
    found = [
        model(name, implementation).generate(
            **inputs, do_sample=False, min_new_tokens=200, max_new_tokens=200,
            cache_implementation=cache, disable_compile=True,
        )
        for implementation in ("kernelmint", "eager")
    ]  # fmt: skip
    assert found[0].shape == (3, 240)
    assert torch.equal(*found)


class Forced(transformers.LogitsProcessor):
    """Makes generate() take these tokens."""

    def __init__(self, tokens: Tensor):
        self.tokens = tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen = self.tokens[:, input_ids.shape[1], None]
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)


@pytest.mark.slow
@ROUNDED
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@EACH
def test_the_same_tokens_in_bf16_if_rounding_does_not_decide(
    name: str, cache: str, device: str, dtype: torch.dtype
) -> None:
    """Along eager's own 200 tokens: ours is eager's wherever eager's best logit leads by more than
    eager errs anywhere (else eager's own token is a matter of rounding: of 600, 11 to 32 are not
    fp32's), and is fp32's as often as eager's is, but for chance."""
    inputs = batch("left", device)
    prompt = inputs["input_ids"].shape[1]
    options = {"do_sample": False, "min_new_tokens": 200, "max_new_tokens": 200,
               "cache_implementation": cache, "disable_compile": True,
               "output_logits": True, "return_dict_in_generate": True}  # fmt: skip
    ours, eager, exact = three(name, device, dtype)
    chosen = eager.generate(**inputs, **options)
    forced = ours.generate(**inputs, **options, logits_processor=[Forced(chosen.sequences)])
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 200), value=1)
    with torch.no_grad():
        true = exact(chosen.sequences, attention_mask=mask).logits[:, prompt - 1 : -1]
    got, want = (torch.stack(found.logits, 1).float() for found in (forced, chosen))
    error = (want - true).abs().max()
    first, second = want.topk(2).values.unbind(-1)
    decided = first - second > error
    assert decided.float().mean() > 0.2
    best, eagers, trues = (logits.argmax(-1) for logits in (got, want, true))
    assert torch.equal(best[decided], eagers[decided])
    won, lost = (best == trues) & (eagers != trues), (best != trues) & (eagers == trues)
    assert lost.sum() - won.sum() <= 4 * (lost.sum() + won.sum()) ** 0.5  # standard deviations
    assert (got - true).abs().max() <= 2 * error


def decoder(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **options})
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Qwen2", {}), ("Phi3", {}), ("Olmo2", {}), ("Cohere2", {"sliding_window": 16}),
        ("Exaone4", {"sliding_window": 16}), ("Gemma3", {"sliding_window": 16}),
        ("Qwen2Moe", {"num_experts": 2, "num_experts_per_tok": 2}),  # a mask of a window of 0
        ("MiniMax", {"num_local_experts": 2, "num_experts_per_tok": 2}),
    ],
)  # fmt: skip
@torch.no_grad()
def test_other_decoders(kind: str, options: dict[str, Any]) -> None:
    """Padded, over a cache in chunks, and packed, as eager is."""
    if kind == "Gemma3":
        config = transformers.Gemma3TextConfig(**SIZES, **options)
        torch.manual_seed(0)
        made = transformers.Gemma3ForCausalLM(config).eval()
    else:
        made = decoder(kind, **options)
    inputs, found = batch("left"), []
    of_tokens = inputs["attention_mask"].bool()
    of_three = torch.cat([torch.arange(n) for n in (20, 7, 13)])[None]
    for implementation in ("kernelmint", "eager"):
        made.set_attn_implementation(implementation)
        whole = made(**inputs, use_cache=False).logits[of_tokens]
        first = made(inputs["input_ids"][:, :36], attention_mask=inputs["attention_mask"][:, :36])
        then = made(
            inputs["input_ids"][:, 36:], attention_mask=inputs["attention_mask"],
            past_key_values=first.past_key_values,
        ).logits  # fmt: skip
        packed = made(inputs["input_ids"][:1], position_ids=of_three, use_cache=False)
        found.append([whole, then, packed.logits])
    for got, want in zip(*found, strict=True):
        close(got, want, want)


@torch.no_grad()
def test_a_mask_of_another_layers_keys_is_refused_where_it_matters() -> None:
    """transformers makes MiniMax's over a cache by its first layer's, which may have no keys."""
    layers = ["linear_attention", "full_attention"]
    made = decoder("MiniMax", num_local_experts=2, layer_types=layers)
    made.set_attn_implementation("kernelmint")
    inputs = batch("left")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    for padding in (torch.ones_like(mask), mask):
        first = made(ids[:, :-1], attention_mask=padding[:, :-1])
        more = {"attention_mask": padding, "past_key_values": first.past_key_values}
        if padding is mask:
            with pytest.raises(runtime.InvalidArgument, match=r"made for 1 keys, .* has 40, and"):
                made(ids[:, -1:], **more)
        else:
            made(ids[:, -1:], **more)


@pytest.mark.parametrize("kind", ["Bloom", "Mpt", "XGLM", "Beit"])
def test_models_that_compute_attention_or_masks_themselves_are_refused(kind: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4}
    inputs: dict[str, Tensor] = {"input_ids": tokens(2, 9)}
    if kind == "Beit":
        inputs = {"pixel_values": torch.randn(3, 3, 32, 32)}
        sizes |= {"image_size": 32, "patch_size": 8, "use_relative_position_bias": True}
        sizes |= {"num_hidden_layers": 1, "intermediate_size": 64}
    else:
        sizes |= {"vocab_size": 97, "n_layer": 1, "n_layers": 1, "num_layers": 1, "n_head": 4}
        sizes |= {"n_heads": 4, "attention_heads": 4, "d_model": 64, "ffn_dim": 64}
    config = getattr(transformers, f"{kind}Config")(**sizes, attn_implementation="kernelmint")
    made = getattr(transformers, f"{kind}Model")(config).eval()
    masks = [None] if kind == "Beit" else [None, torch.ones(2, 9).long()]
    for mask in masks:
        more = {} if mask is None else {"attention_mask": mask}
        message = "mask: got a tensor of torch.float32" if kind == "Beit" else f"{kind}Attention"
        with torch.no_grad(), pytest.raises(runtime.InvalidArgument, match=message):
            made(**inputs, **more)


def test_queries_and_keys_of_continuous_batching() -> None:
    """What `paged|kernelmint` makes of a cache, which takes the newest keys and gives all."""
    past = torch.randn(2, 40, 2, 16)

    def update(key_states: Tensor, value_states: Tensor, **_: Any) -> list[Tensor]:
        new = (t[0].transpose(0, 1) for t in (key_states, value_states))
        return [
            torch.cat([old[:30], t[:1], old[30:], t[1:]]) for old, t in zip(past, new, strict=True)
        ]

    q, k, v = torch.randn(1, 4, 3, 16), *torch.randn(2, 1, 2, 3, 16)
    ends = [torch.tensor(e, dtype=torch.int32) for e in ([0, 1, 3], [0, 31, 43])]
    got, _ = integration.paged_attention(
        SimpleNamespace(layer_idx=0), q, k, v, None,
        cache=SimpleNamespace(update=update), cu_seq_lens_q=ends[0],
        cu_seq_lens_k={"full_attention": ends[1]}, read_index=[], write_index=[],
    )  # fmt: skip
    keys, values = (t.transpose(0, 1) for t in update(k, v))
    for rows, of in ((slice(0, 1), slice(0, 31)), (slice(1, 3), slice(31, 43))):
        seen = torch.ones(12, 12).tril()[-2:].bool() if rows.stop == 3 else None
        want = torch.nn.functional.scaled_dot_product_attention(
            q[0, :, rows], keys[:, of], values[:, of], attn_mask=seen, enable_gqa=True
        )
        torch.testing.assert_close(got[0, rows].transpose(0, 1), want)


@EXACT
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_continuous_batching(name: str, device: str, dtype: torch.dtype) -> None:
    """Requests join and leave; a layer with a window keeps the last keys alone."""
    if "paged|sdpa" not in transformers.AttentionInterface().valid_keys():
        pytest.skip("this transformers batches continuously by its own implementations alone")
    prompts = [tokens(n).tolist() for n in (5, 40, 17)]
    ours, eager, exact = three(name, device, dtype)
    ours.set_attn_implementation("paged|kernelmint")
    try:
        found = ours.generate_batch(
            prompts,
            generation_config=transformers.GenerationConfig(
                max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                num_blocks=16, max_batch_tokens=64
            ),
        )
    finally:
        ours.set_attn_implementation("kernelmint")
    for prompt, output in zip(prompts, found.values(), strict=True):
        chosen = torch.tensor([output.generated_tokens], device=device)
        whole = torch.cat([torch.tensor([prompt], device=device), chosen], 1)
        with torch.no_grad():
            want, true = (each(whole).logits[:, len(prompt) - 1 : -1] for each in (eager, exact))
        assert chosen.shape == (1, 20)
        if dtype == torch.float32:
            assert torch.equal(chosen, want.argmax(-1))
        behind = true.amax(-1) - true.gather(-1, chosen[..., None])[..., 0]
        assert (behind <= 4 * (want - true).abs().max()).all()  # both that are compared may err


@EXACT
@EACH
def test_a_prompt_in_chunks_over_a_cache(name: str, device: str, dtype: torch.dtype) -> None:
    """More than one query over keys that are there already, and beyond a sliding window."""
    ids = tokens(2, 60, device=device)
    ours, *eagers = three(name, device, dtype)
    cache = transformers.DynamicCache(config=ours.config)
    with torch.no_grad():
        parts = [ours(part, past_key_values=cache).logits for part in ids.split(25, 1)]
        close(torch.cat(parts, 1), *(eager(ids).logits for eager in eagers))


@EXACT
@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
def test_bidirectional_models(kind: str, device: str, dtype: torch.dtype) -> None:
    """Whose sequences are padded on the right; ModernBERT has windows to both sides."""
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, initializer_range=0.2, pad_token_id=0, local_attention=12,
    )  # fmt: skip
    torch.manual_seed(0)
    encoder = getattr(transformers, f"{kind}Model")(config).eval().to(device)
    weights = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    inputs, found = batch("right", device), []
    of_tokens = inputs["attention_mask"].bool()
    for implementation, of in (("kernelmint", dtype), ("eager", dtype), ("eager", torch.float32)):
        encoder.to(of).load_state_dict(weights)
        encoder.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(encoder(**inputs).last_hidden_state[of_tokens])
    close(*found)


def whole(ours: Any, device: str) -> Any:
    """The whole model as one graph, masks included; by inductor on a GPU, since on a CPU that
    takes half a minute a model."""
    torch.compiler.reset()
    backend = "inductor" if device == "cuda" else "aot_eager"
    return torch.compile(ours, fullgraph=True, backend=backend)


@torch.no_grad()
def two_steps(call: Any, config: Any, prompt: dict[str, Tensor], second: Tensor) -> Tensor:
    """The logits of a prompt and of a token after it, over a static cache."""
    cache = transformers.StaticCache(config=config, max_cache_len=60)
    first = call(**prompt, past_key_values=cache).logits[:, -1]
    mask = torch.nn.functional.pad(prompt["attention_mask"], (0, 1), value=1)
    then = call(input_ids=second, attention_mask=mask, past_key_values=cache).logits[:, -1]
    return torch.stack([first, then])


@EXACT
@pytest.mark.parametrize("name", slow_after(1, ["llama", "gemma2", "gpt-oss"]))
def test_a_whole_model_over_a_static_cache_is_one_graph(
    name: str, device: str, dtype: torch.dtype
) -> None:
    """A padded prompt, then a token."""
    prompt, second = batch("left", device), tokens(3, 1, device=device)
    ours, *eagers = three(name, device, dtype)
    close(*(two_steps(m, ours.config, prompt, second) for m in (whole(ours, device), *eagers)))


@pytest.mark.slow
@EXACT
def test_and_without_a_cache(device: str, dtype: torch.dtype) -> None:
    """Nothing is read: packed sequences are refused when it runs, unless their places are given."""
    ours, *eagers = three("mistral", device, dtype)
    call, ids = whole(ours, device), batch("left", device)["input_ids"]
    plain = {"input_ids": ids}
    ends = torch.tensor([0, 60, 120], dtype=torch.int32, device=device)
    packed = {
        "input_ids": ids.view(1, 120),
        "position_ids": torch.arange(60, device=device).repeat(2)[None],
    }
    places = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 60, "max_length_k": 60}
    with torch.no_grad():
        for given, given_places in ((plain, {}), (packed, places)):
            got = call(**given, **given_places, use_cache=False).logits
            close(got, *(eager(**given, use_cache=False).logits for eager in eagers))
        if device == "cuda":
            return  # the refusal would end the process's use of the GPU
        with pytest.raises(RuntimeError, match="position_ids: got packed sequences in a compiled"):
            call(**packed, use_cache=False)


@pytest.mark.parametrize("strict", slow_after(1, [False, True]))
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", slow_after(1, ["llama", "mistral", "gpt-oss"]))
def test_an_exported_model_is_right_at_other_lengths(name: str, padded: bool, strict: bool) -> None:
    """And for other padding; what it would compute wrongly it refuses."""
    torch.compiler.reset()
    ours = model(name, "kernelmint")
    first, *others = batch("left"), {"input_ids": tokens(2, 25)}, {"input_ids": tokens(4, 70)}
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", min=9, max=500)}
    shapes: dict[str, Any] = {"input_ids": dims, "use_cache": None}
    if padded:
        shapes["attention_mask"] = dims
        for inputs in others:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            inputs["attention_mask"][1, :11] = 0
    else:
        first.pop("attention_mask")
    program = torch.export.export(
        ours, (), {**first, "use_cache": False}, dynamic_shapes=shapes, strict=strict
    ).module()
    for inputs in (first, *others):
        there = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        got, want = (m(**inputs, use_cache=False).logits for m in (program, model(name, "eager")))
        close(got[there], want[there], want[there])
    if padded:
        first["attention_mask"][0, 7] = 0
        with pytest.raises(RuntimeError, match="attention_mask: got tokens after padding"):
            program(**first, use_cache=False)


@pytest.mark.parametrize("strict", slow_after(1, [False, True]))
@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_an_exported_model_refuses_packed_sequences(name: str, strict: bool) -> None:
    torch.compiler.reset()
    inputs = {"input_ids": tokens(1, 70), "position_ids": torch.arange(70)[None]}
    program = torch.export.export(
        model(name, "kernelmint"), (), {**inputs, "use_cache": False}, strict=strict
    ).module()
    got, want = (m(**inputs, use_cache=False).logits for m in (program, model(name, "eager")))
    close(got, want, want)
    inputs["position_ids"] = positions("cpu")
    with pytest.raises(RuntimeError, match="position_ids: got packed sequences in a compiled"):
        program(**inputs, use_cache=False)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_a_model_of_fake_tensors_has_its_shapes(name: str) -> None:
    inputs, ours = batch("left"), model(name, "kernelmint")
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        for given in (inputs, {"input_ids": inputs["input_ids"]}):
            assert ours(**given, use_cache=False).logits.shape == (3, 40, 97)


def test_torch_jit_trace_is_refused_by_name() -> None:
    """Its programs keep no assertions: they would take packed sequences for one."""
    with pytest.raises(runtime.InvalidArgument, match=r"expected torch\.export"):
        torch.jit.trace(lambda x: x + integration.mask(2, 9, 9).sum(), (torch.zeros(()),))


@pytest.mark.gpu
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen"])
def test_a_decoding_step_in_a_cuda_graph(name: str, padded: bool) -> None:
    """Captured once, each replay decodes the next token: the cache counts on the device."""
    inputs = batch("left", "cuda")
    steps = tokens(20, 3, 1, device="cuda")
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 20), value=1)
    mask = mask if padded else torch.ones_like(mask)
    ours, *eagers = three(name, "cuda", torch.bfloat16)
    cache = transformers.StaticCache(config=ours.config, max_cache_len=60)
    given = {"attention_mask": mask} if padded else {}
    token = steps[0].clone()
    with torch.no_grad():
        ours(inputs["input_ids"], attention_mask=mask[:, :40], past_key_values=cache)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # what is allocated or compiled once
            ours(token, **given, past_key_values=cache)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = ours(token, **given, past_key_values=cache).logits
        for layer in cache.layers:
            layer.cumulative_length.fill_(40)
        made = []
        for step in steps:
            token.copy_(step)
            graph.replay()
            made.append(captured[:, -1].clone())
        ids = torch.cat([inputs["input_ids"], *steps], 1)
        want = [e(ids, attention_mask=mask).logits[:, 40:].transpose(0, 1) for e in eagers]
    close(torch.stack(made), *want)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_generate_compiles_decoding_on_gpus(name: str) -> None:
    """As it does by itself over a static cache, into CUDA graphs."""
    torch.compiler.reset()
    inputs = batch("left", "cuda")
    ours, eager, exact = three(name, "cuda", torch.bfloat16)
    made = ours.generate(
        **inputs, do_sample=False, min_new_tokens=20, max_new_tokens=20,
        cache_implementation="static",
    )  # fmt: skip
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 20), value=1)
    with torch.no_grad():
        want, true = (each(made, attention_mask=mask).logits[:, 39:-1] for each in (eager, exact))
    behind = true.amax(-1) - true.gather(-1, made[:, 40:, None])[..., 0]
    assert (behind <= 4 * (want - true).abs().max()).all()  # both that are compared may err


@EXACT
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt-oss"])
def test_training_on_packed_and_on_padded_sequences(
    name: str, device: str, dtype: torch.dtype
) -> None:
    """Eager's gradients: with windows, sinks, and of lengths; eager has packed ones each alone."""
    packed = {"input_ids": tokens(1, 70, device=device), "position_ids": positions(device)}
    padded = batch("left", device)
    for inputs in (packed, padded):
        gradients = []
        ours, *_ = models = three(name, device, dtype)
        for trained in models:
            trained.zero_grad()
            if inputs is packed and trained is not ours:
                logits = alone(trained, inputs["input_ids"])
            else:
                logits = trained(**inputs, use_cache=False).logits
            if inputs is padded:
                logits = logits[inputs["attention_mask"].bool()]
            logits.float().logsumexp(-1).mean().backward()
            named = trained.model.layers[0].self_attn.named_parameters()
            gradients.append({part: parameter.grad.clone() for part, parameter in named})
        same_gradients(*gradients)


def same_gradients(
    got: dict[str, Tensor], eager: dict[str, Tensor], exact: dict[str, Tensor]
) -> None:
    """As near to fp32's as eager's are; in fp32 the same but for rounding."""
    for part, true in exact.items():
        if true.dtype == got[part].dtype:
            torch.testing.assert_close(got[part], eager[part], rtol=1e-3, atol=1e-5)
            continue
        ours, eagers = ((found[part] - true).norm() / true.norm() for found in (got, eager))
        assert ours <= 2 * eagers + 2.0**-8, part


@EXACT
def test_training_a_model_without_padding(device: str, dtype: torch.dtype) -> None:
    """flash_forward's gradients."""
    config = transformers.LlamaConfig(**SIZES | {"head_dim": 64})
    llama = transformers.LlamaForCausalLM(config).to(device)
    weights = {name: tensor.clone() for name, tensor in llama.state_dict().items()}
    ids, gradients = tokens(2, 40, device=device), []
    for implementation, of in (("kernelmint", dtype), ("eager", dtype), ("eager", torch.float32)):
        llama.to(of).load_state_dict(weights)
        llama.set_attn_implementation(implementation)
        llama.zero_grad()
        llama(ids, labels=ids).loss.backward()
        gradients.append({"q_proj": llama.model.layers[0].self_attn.q_proj.weight.grad.clone()})
    same_gradients(*gradients)


def test_rows_of_one_sequence_each_are_no_packed_sequences() -> None:
    """torch.compile has transformers look for some in every batch; these have gradients."""
    packed = transformers.masking_utils.packed_sequence_mask_function(torch.zeros(2, 9).long())
    causal = transformers.masking_utils.causal_mask_function
    both = transformers.masking_utils.and_masks(packed, causal)
    assert integration.mask(2, 9, 9, mask_function=both).shape == (0, 2, 1, 2)


def refused(message: str, name: str = "llama", **inputs: Any) -> None:
    with torch.no_grad(), pytest.raises(runtime.InvalidArgument, match=message):
        model(name, "kernelmint")(**inputs)


def test_a_mask_that_is_no_pattern_is_an_error() -> None:
    ids = torch.randint(1, 97, (2, 9))
    refused("mask: got a tensor of torch.float32, .2, 1, 9, 9., expected causal", input_ids=ids,
            attention_mask=torch.zeros(2, 1, 9, 9))  # fmt: skip
    hole = torch.ones(2, 9).long()
    hole[1, 4:6] = 0
    refused("attention_mask: got tokens after padding", input_ids=ids, attention_mask=hole)
    chunked = transformers.masking_utils.chunked_causal_mask_function(4, torch.zeros(2).long())
    with pytest.raises(
        runtime.InvalidArgument, match="mask: got a pattern that takes 'sub' of pos"
    ):
        integration.mask(2, 9, 9, mask_function=chunked)


def test_patterns_are_read_in_a_compiled_graph_as_elsewhere() -> None:
    masks = transformers.masking_utils
    chunked = masks.chunked_causal_mask_function(4, torch.zeros(2).long())
    refusals = 0
    for function in (
        masks.causal_mask_function, masks.bidirectional_mask_function,
        masks.sliding_window_causal_mask_function(5),
        masks.sliding_window_bidirectional_mask_function(5), chunked,
        masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(torch.zeros(2, 9))),
    ):  # fmt: skip

        def shape(x: Tensor, function: Any = function) -> Tensor:
            return x + integration.mask(2, 9, 9, mask_function=function).shape[2]

        compiled = torch.compile(shape, backend="eager", fullgraph=True)
        try:
            expected = shape(torch.zeros(()))
        except runtime.InvalidArgument:
            refusals += 1
            with pytest.raises(Exception, match="mask: got a pattern that takes"):
                compiled(torch.zeros(()))
        else:
            assert compiled(torch.zeros(())) == expected
    assert refusals == 2


QUERIES, KEYS = torch.arange(9), torch.arange(9)
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 2]])
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 0]])


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def of_one(b: Any, h: Any, q: Any, k: Any) -> Any:
    return DOCUMENTS[b, k] == DOCUMENTS[b, q]


def of(function: Any, *tables: Tensor) -> Any:
    """At looked up positions."""

    def looked_up(b: Any, h: Any, q: Any, k: Any) -> Any:
        for table in tables:
            q, k = table[b, q], table[b, k]
        return function(b, h, q, k)

    return looked_up


def both(*functions: Any) -> Any:
    return transformers.masking_utils.and_masks(*functions)


@pytest.mark.parametrize(
    "function",
    [
        causal,
        lambda b, h, q, k: k < q + 1,
        lambda b, h, q, k: (q - k >= 0) & (q - k < 3),
        lambda b, h, q, k: (k - q > -3) & (k <= q),
        lambda b, h, q, k: (q - 2 <= k) & (q - k >= 0),
        lambda b, h, q, k: (q - k).abs() < 3,
        lambda b, h, q, k: abs(k - q) <= 2,
        lambda b, h, q, k: (q - k <= 2) & (k - q <= 2),
        lambda b, h, q, k: k > -1,
        both(of_one, causal),
        both(of_one, of(causal, POSITIONS)),
        both(of(lambda b, h, q, k: k > q - 3, POSITIONS), of(causal, POSITIONS), of_one),
    ],
)
def test_patterns_however_they_are_written(function: Any) -> None:
    """Every query sees what the function itself says, evaluated for each pair."""
    q, k, v = torch.randn(3, 1, 2, 9, 16)
    seen = function(torch.zeros(1, 1, 1).long(), 0, QUERIES[None, :, None], KEYS[None, None])
    seen = seen.expand(1, 9, 9)
    made = integration.mask(1, 9, 9, mask_function=function)
    got, _ = integration.attention(torch.nn.Module(), q, k, v, made)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(got.transpose(1, 2), want)


@pytest.mark.parametrize(
    "function",
    [
        lambda b, h, q, k: k < q,  # not its own key
        lambda b, h, q, k: (q - 1) - k >= 0,
        lambda b, h, q, k: ~(k > q),
        lambda b, h, q, k: (q >= k) | (k >= 0),
        lambda b, h, q, k: q == k,
        lambda b, h, q, k: k >= 1,
        lambda b, h, q, k: (q - k) * 2 >= 0,
        lambda b, h, q, k: q // 3 == k // 3,
        both(causal, lambda b, h, q, k: DOCUMENTS[b, k] > 0),
        both(causal, lambda b, h, q, k: (DOCUMENTS > 0)[b, k]),
        both(causal, lambda b, h, q, k: DOCUMENTS[b, q] == POSITIONS[b, k]),
        both(causal, lambda b, h, q, k: (DOCUMENTS % 2)[b, q] == (DOCUMENTS % 2)[b, k]),  # apart
        both(of_one, of(causal, 2 * POSITIONS)),
        both(of_one, of(causal, POSITIONS, POSITIONS)),
        of(causal, POSITIONS),  # of no sequence
        lambda b, h, q, k: True,
        lambda b, h, q, k: q,
    ],
)
def test_what_no_pattern_says_is_refused(function: Any) -> None:
    with pytest.raises(runtime.InvalidArgument, match="mask: got "):
        integration.mask(1, 9, 9, mask_function=function)


def test_dropout_is_kernelmints() -> None:
    llama = model("llama", "kernelmint")
    layer = llama.model.layers[0].self_attn
    q = torch.randn(1, 4, 9, 16)
    torch.manual_seed(1)
    o, _ = integration.attention(layer, q, q[:, :2], q[:, :2], None, dropout=0.5)
    torch.manual_seed(1)
    expected = runtime.attention(q, q[:, :2], q[:, :2], causal=True, layout="bhsd", dropout_p=0.5)
    assert torch.equal(o, expected.transpose(1, 2))

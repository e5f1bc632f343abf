"""transformers' models of random weights on our kernels, beside transformers' own "eager"."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import runtime
from kernelmint.integrations import transformers as integration

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


@pytest.fixture(scope="module", autouse=True)
def active() -> Iterator[None]:
    integration.activate()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small wait for a second thread longer than they take
    yield
    torch.set_num_threads(threads)


@functools.cache
def model(name: str, implementation: str, dtype: torch.dtype = torch.float32) -> Any:
    kind, options = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**SIZES, **options)
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter_name, parameter in made.named_parameters():
        if "sinks" in parameter_name:
            torch.nn.init.normal_(parameter)
    made.set_attn_implementation(implementation)
    return made.to(dtype)


def batch(side: str) -> dict[str, Tensor]:
    """Sequences of unequal lengths, padded on this side."""
    ids, mask = torch.randint(1, 97, (3, max(LENGTHS))), torch.ones(3, max(LENGTHS)).long()
    for row, length in enumerate(LENGTHS):
        pad = max(LENGTHS) - length
        hidden = slice(0, pad) if side == "left" else slice(length, None)
        ids[row, hidden] = mask[row, hidden] = 0
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def logits(name: str, dtype: torch.dtype, **inputs: Any) -> tuple[Tensor, Tensor]:
    """Ours and eager's."""
    found = [model(name, i, dtype)(**inputs).logits for i in ("kernelmint", "eager")]
    return found[0], found[1]


def compare(name: str, dtype: torch.dtype, inputs: dict[str, Any], where: Tensor) -> None:
    """Ours are as near to fp32's as eager's are, and in fp32 the same but for rounding."""
    got, eager = (t[where] for t in logits(name, dtype, **inputs))
    if dtype == torch.float32:
        torch.testing.assert_close(got, eager, rtol=2.0**-14, atol=2.0**-14)
        return
    exact = logits(name, torch.float32, **inputs)[1][where]
    largest = (eager - exact).abs().max()
    assert (got - exact).abs().max() <= 2 * largest


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
EACH = pytest.mark.parametrize("name", MODELS)


@DTYPES
@pytest.mark.parametrize("side", ["left", "right"])
@EACH
def test_padded_batches(name: str, side: str, dtype: torch.dtype) -> None:
    inputs = batch(side)
    compare(name, dtype, inputs, inputs["attention_mask"].bool())


@DTYPES
@EACH
def test_packed_sequences_by_their_positions(name: str, dtype: torch.dtype) -> None:
    """(transformers takes gpt-oss's for one sequence, whatever the implementation.)"""
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    inputs = {"input_ids": torch.randint(1, 97, (1, 70)), "position_ids": positions}
    compare(name, dtype, inputs | {"use_cache": False}, torch.ones(1, 70, dtype=torch.bool))


@EACH
def test_packed_sequences_by_their_places(name: str) -> None:
    """As a trainer's collator passes them: each is what it is alone."""
    ids = torch.randint(1, 97, (1, 70))
    ends = torch.tensor([0, 40, 47, 70], dtype=torch.int32)
    with torch.no_grad():
        got = model(name, "kernelmint")(
            input_ids=ids, position_ids=torch.cat([torch.arange(n) for n in LENGTHS])[None],
            cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=40, max_length_k=40,
            use_cache=False,
        ).logits  # fmt: skip
        want = [model(name, "eager")(part).logits for part in ids.split(LENGTHS, 1)]
    torch.testing.assert_close(got, torch.cat(want, 1), rtol=2.0**-14, atol=2.0**-14)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@EACH
def test_the_same_greedy_tokens_for_200_steps(name: str, cache: str) -> None:
    """Caches of layers with a window slide; a batch of unequal lengths is padded on the left."""
    inputs = batch("left")
    tokens = [
        model(name, implementation).generate(
            **inputs, do_sample=False, min_new_tokens=200, max_new_tokens=200,
            cache_implementation=cache, disable_compile=True,
        )
        for implementation in ("kernelmint", "eager")
    ]  # fmt: skip
    assert tokens[0].shape == (3, 240)
    assert torch.equal(*tokens)


class Forced(transformers.LogitsProcessor):
    """Makes generate() take these tokens."""

    def __init__(self, tokens: Tensor):
        self.tokens = tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen = self.tokens[:, input_ids.shape[1], None]
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt-oss"])
def test_the_same_tokens_in_bf16_if_rounding_does_not_decide(name: str) -> None:
    """Along eager's own 200 tokens: ours is eager's wherever eager's best logit leads by more than
    eager errs anywhere (else eager's own token is a matter of rounding: of 600, 11 to 32 are not
    fp32's), and is fp32's as often as eager's is, but for 1%."""
    inputs = batch("left")
    prompt = inputs["input_ids"].shape[1]
    options = {"do_sample": False, "min_new_tokens": 200, "max_new_tokens": 200,
               "output_logits": True, "return_dict_in_generate": True}  # fmt: skip
    eager = model(name, "eager", torch.bfloat16).generate(**inputs, **options)
    forced = model(name, "kernelmint", torch.bfloat16).generate(
        **inputs, **options, logits_processor=[Forced(eager.sequences)]
    )
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 200), value=1)
    with torch.no_grad():
        exact = model(name, "eager")(eager.sequences, attention_mask=mask).logits[
            :, prompt - 1 : -1
        ]
    got, want = (torch.stack(found.logits, 1).float() for found in (forced, eager))
    error = (want - exact).abs().max()
    first, second = want.topk(2).values.unbind(-1)
    decided = first - second > error
    assert decided.float().mean() > 0.2
    ours, eagers, exacts = (logits.argmax(-1) for logits in (got, want, exact))
    assert torch.equal(ours[decided], eagers[decided])
    assert (ours == exacts).sum() >= (eagers == exacts).sum() - 6
    assert (got - exact).abs().max() <= 2 * error


def test_continuous_batching() -> None:
    """Requests join and leave; a layer with a window keeps the last keys alone."""
    for name in ("llama", "mistral"):
        prompts = [torch.randint(1, 97, (n,)).tolist() for n in (5, 40, 17)]
        ours = model(name, "kernelmint")
        with torch.no_grad():
            want = [
                model(name, "eager").generate(
                    torch.tensor([prompt]), max_new_tokens=20, do_sample=False
                )[0, len(prompt) :].tolist()
                for prompt in prompts
            ]  # fmt: skip
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
        assert [output.generated_tokens for output in found.values()] == want


@EACH
def test_a_prompt_in_chunks_over_a_cache(name: str) -> None:
    """More than one query over keys that are there already, and beyond a sliding window."""
    ids = torch.randint(1, 97, (2, 60))
    whole = logits(name, torch.float32, input_ids=ids)[1]
    ours = model(name, "kernelmint")
    cache = transformers.DynamicCache(config=ours.config)
    with torch.no_grad():
        parts = [ours(part, past_key_values=cache).logits for part in ids.split(25, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=2.0**-14, atol=2.0**-14)


@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
def test_bidirectional_models(kind: str) -> None:
    """Whose sequences are padded on the right; ModernBERT has windows to both sides."""
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, initializer_range=0.2, pad_token_id=0, local_attention=12,
    )  # fmt: skip
    torch.manual_seed(0)
    encoder = getattr(transformers, f"{kind}Model")(config).eval()
    inputs, found = batch("right"), []
    for implementation in ("kernelmint", "eager"):
        encoder.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(encoder(**inputs).last_hidden_state[inputs["attention_mask"].bool()])
    torch.testing.assert_close(*found, rtol=2.0**-14, atol=2.0**-14)


def whole(name: str) -> Any:
    """The whole model as one graph, masks included."""
    torch.compiler.reset()
    return torch.compile(model(name, "kernelmint"), fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss"])
def test_a_whole_model_over_a_static_cache_is_one_graph(name: str) -> None:
    """A padded prompt, then a token."""
    found, prompt = [], batch("left")
    for call in (whole(name), model(name, "eager")):
        inputs, made = dict(prompt), []
        cache = transformers.StaticCache(config=model(name, "eager").config, max_cache_len=60)
        for _ in range(2):
            with torch.no_grad():
                made.append(call(**inputs, past_key_values=cache).logits[:, -1])
            more = torch.ones(3, 1).long()
            inputs["attention_mask"] = torch.cat([inputs["attention_mask"], more], 1)
            inputs["input_ids"] = made[-1].argmax(-1, keepdim=True)
        found.append(torch.stack(made))
    torch.testing.assert_close(*found, rtol=2.0**-14, atol=2.0**-14)


def test_and_without_a_cache() -> None:
    """Nothing is read: packed sequences are refused when it runs, unless their places are given."""
    call, inputs = whole("mistral"), batch("left")
    plain = {"input_ids": inputs["input_ids"]}
    ends = torch.tensor([0, 60, 120], dtype=torch.int32)
    packed = {
        "input_ids": inputs["input_ids"].view(1, 120),
        "position_ids": torch.arange(60).repeat(2)[None],
    }
    places = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 60, "max_length_k": 60}
    with torch.no_grad():
        for given in (plain, packed | places):
            want = model("mistral", "kernelmint")(**given, use_cache=False).logits
            torch.testing.assert_close(call(**given, use_cache=False).logits, want)
        with pytest.raises(RuntimeError, match="position_ids: got packed sequences in a compiled"):
            call(**packed, use_cache=False)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt-oss"])
def test_training_on_packed_and_on_padded_sequences(name: str) -> None:
    """Eager's gradients: with windows, sinks, and of lengths."""
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    packed = {"input_ids": torch.randint(1, 97, (1, 70)), "position_ids": positions}
    of_tokens = torch.ones(1, 70, dtype=torch.bool)
    padded = batch("left")
    for inputs, there in ((packed, of_tokens), (padded, padded["attention_mask"].bool())):
        gradients = []
        for implementation in ("kernelmint", "eager"):
            trained = model(name, implementation)
            trained.zero_grad()
            trained(**inputs, use_cache=False).logits[there].logsumexp(-1).mean().backward()
            named = trained.model.layers[0].self_attn.named_parameters()
            gradients.append({part: parameter.grad for part, parameter in named})
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_training_a_model_without_padding() -> None:
    """flash_forward's gradients."""
    config = transformers.LlamaConfig(**SIZES | {"head_dim": 64})
    llama = transformers.LlamaForCausalLM(config)
    ids, gradients = torch.randint(1, 97, (2, 40)), []
    for implementation in ("kernelmint", "eager"):
        llama.set_attn_implementation(implementation)
        llama.zero_grad()
        llama(ids, labels=ids).loss.backward()
        gradients.append(llama.model.layers[0].self_attn.q_proj.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


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
    refused("mask: got a tensor of torch.float32, .2, 1, 9, 9.", input_ids=ids,
            attention_mask=torch.zeros(2, 1, 9, 9))  # fmt: skip
    hole = torch.ones(2, 9).long()
    hole[1, 4:6] = 0
    refused("attention_mask: got tokens behind padding", input_ids=ids, attention_mask=hole)
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


def test_dropout_is_refused_by_name() -> None:
    llama = model("llama", "kernelmint")
    layer = llama.model.layers[0].self_attn
    q = torch.randn(1, 4, 9, 16)
    with pytest.raises(runtime.InvalidArgument, match=r"dropout_p: got 0\.1, expected 0"):
        integration.attention(layer, q, q[:, :2], q[:, :2], None, dropout=0.1)

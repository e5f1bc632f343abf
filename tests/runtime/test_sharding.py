"""Distributed tensors through the operators, in two real processes: on the CPU, and on two GPUs."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import init_device_mesh as device_mesh

import runtime

REFUSED = {
    "a length": "q: got Shard(dim=1) of [B, Sq, H, D], expected a division along B, or along H "
    "and Hk: call redistribute() before",
    "batch and heads": "k: got Shard(dim=2) of [B, Sk, Hk, D], expected a division along B: call",
    "a sum": "q: got Partial(sum) of [B, Sq, H, D], expected a division along B, or",
    "a plain tensor": "k: got a Tensor beside distributed tensors; pass a DTensor",
    "a single head of keys": "Hk: got 1, expected a multiple of 2, among which H and Hk are "
    "divided",
    "a part of packed sequences": "q: got Shard(dim=1) of [Nq, Tq, H, D], expected a division "
    "along H and Hk: call",
    "an output elsewhere": "o: got placements (Replicate(),), expected (Shard(dim=0),), as",
}


def _right(mesh) -> None:
    on_gpu = mesh.device_type == "cuda"
    of = {"device": mesh.device_type, "dtype": torch.bfloat16 if on_gpu else torch.float32}

    def same(found, expected) -> None:
        if on_gpu:  # where a part of the heads may be cut by their keys otherwise
            torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-7)
        else:
            assert torch.equal(found, expected)

    q = torch.randn(3, 19, 8, 64, **of)  # an odd batch, heads that share keys
    k, v = torch.randn(2, 3, 33, 4, 64, **of).unbind()
    single = runtime.attention(q, k, v, causal=True, return_lse=True)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    runtime.attention(*leaves).square().sum().backward()
    for placement, of_lse in ((Shard(0), Shard(0)), (Shard(2), Shard(1)), (Replicate(),) * 2):
        parts = [distribute_tensor(t, mesh, [placement]) for t in (q, k, v)]
        for mode in (torch.enable_grad, torch.inference_mode):
            with mode():
                found = runtime.attention(*parts, causal=True, return_lse=True)
                assert [t.placements for t in found] == [(placement,), (of_lse,)]
                for part, whole in zip(found, single, strict=True):
                    same(part.full_tensor(), whole)
        swapped = (t.transpose(1, 2) for t in parts)
        heads_first = runtime.attention(*swapped, causal=True, layout="bhsd")
        same(heads_first.full_tensor().transpose(1, 2), single[0])
        out = torch.zeros_like(parts[0])
        runtime.attention(*parts, causal=True, out=out)
        same(out.full_tensor(), single[0])
        own = [t.detach().requires_grad_() for t in parts]
        runtime.attention(*own).square().sum().full_tensor().backward()
        for part, leaf in zip(own, leaves, strict=True):
            within = {"rtol": 2**-5, "atol": 2**-5} if on_gpu else {}
            torch.testing.assert_close(part.grad.full_tensor(), leaf.grad, **within)
    if not on_gpu:
        _right_of_lengths(mesh, q, k, v)
    # What has no dimension that is divided is there for all.
    sink = torch.randn(8, **of)
    pages = torch.randperm(6, dtype=torch.int32, device=mesh.device_type).view(3, 2)
    cache = torch.randn(6, 16, 4, 64, **of)
    expected = runtime.decode(q[:, :1], cache, cache, block_table=pages, s_aux=sink)
    for batch in (True, False):
        found = runtime.decode(
            distribute_tensor(q[:, :1], mesh, [Shard(0 if batch else 2)]),
            *[distribute_tensor(cache, mesh, [Replicate() if batch else Shard(2)])] * 2,
            block_table=distribute_tensor(pages, mesh, [Shard(0) if batch else Replicate()]),
            s_aux=distribute_tensor(sink, mesh, [Replicate() if batch else Shard(0)]),
        )
        torch.testing.assert_close(found.full_tensor(), expected)


def _on_gpu(rank, folder) -> None:
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    where = f"file://{folder}/group"
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method=where)
    _right(device_mesh("cuda", (2,)))
    dist.barrier()  # else one's group may go while the other still sends
    dist.destroy_process_group()


@pytest.mark.gpu
def test_parts_on_two_gpus(tmp_path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    mp.spawn(_on_gpu, (tmp_path,), 2)


def _right_of_lengths(mesh, q, k, v) -> None:
    """With windows and lengths, which are divided as sequences are, and over pages."""
    lengths = torch.tensor([33, 7, 20], dtype=torch.int32)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]

    def attend(q, k, v, lengths=None):
        return runtime.flash_attn_func(q, k, v, window_size=(5, 0), seqused_k=lengths)

    attend(*leaves, lengths).square().sum().backward()
    pages, cache = torch.randperm(6, dtype=torch.int32).view(3, 2), torch.randn(6, 16, 4, 64)
    for placement, of_rows in ((Shard(0), Shard(0)), (Shard(2), Replicate())):
        own = [distribute_tensor(t, mesh, [placement]).requires_grad_() for t in (q, k, v)]
        used, table = (distribute_tensor(t, mesh, [of_rows]) for t in (lengths, pages))
        for given, whole in (((), ()), ((used,), (lengths,))):
            found = attend(*own, *given)
            assert found.placements == (placement,)
            assert torch.equal(found.full_tensor(), attend(q, k, v, *whole))
        attend(*own, used).square().sum().full_tensor().backward()
        for part, leaf in zip(own, leaves, strict=True):
            torch.testing.assert_close(part.grad.full_tensor(), leaf.grad)
        of_pages = Replicate() if of_rows == placement else placement
        spread = distribute_tensor(cache, mesh, [of_pages])
        found = runtime.flash_attn_with_kvcache(own[0].detach(), spread, spread, block_table=table)
        expected = runtime.flash_attn_with_kvcache(q, cache, cache, block_table=pages)
        assert torch.equal(found.full_tensor(), expected)


def _drops_out(mesh) -> None:
    """Parts that are alike drop other probabilities, though the processes' generators are alike,
    and a part's gradients those that its output drops."""
    for dim in (0, 2):
        half, cotangent = torch.randn(1, 33, 2, 64), torch.randn(2, 33, 4, 64)
        q = torch.cat([half, half], dim).repeat(1 if dim == 0 else 2, 1, 2 if dim == 0 else 1, 1)
        parts = [distribute_tensor(q, mesh, [Shard(dim)]).requires_grad_() for _ in range(3)]
        o = runtime.attention(*parts, dropout_p=0.5)
        whole = o.full_tensor()
        assert not torch.equal(*whole.chunk(2, dim))
        product = (o * distribute_tensor(cotangent, mesh, [Shard(dim)])).sum().full_tensor()
        product.backward()  # of values it is linear
        of_values = (parts[2].grad * parts[2]).sum().full_tensor()
        torch.testing.assert_close(of_values, product, rtol=1e-4, atol=1e-3)  # sums of 33,792


def _refused(mesh) -> dict[str, str]:
    q, k = torch.randn(4, 19, 8, 64), torch.randn(4, 19, 1, 64)
    all_of = {s: distribute_tensor(q, mesh, [s]) for s in (Shard(0), Shard(1), Shard(2))}
    partial = DTensor.from_local(q, mesh, [Partial()])
    out = distribute_tensor(torch.zeros_like(q), mesh, [Replicate()])
    few = distribute_tensor(q, mesh, [Shard(2)])
    packed = distribute_tensor(q[0], mesh, [Shard(0)])
    places = distribute_tensor(torch.tensor([0, 9, 19], dtype=torch.int32), mesh, [Replicate()])
    calls = {
        "a length": lambda: runtime.attention(*[all_of[Shard(1)]] * 3),
        "batch and heads": lambda: runtime.attention(all_of[Shard(0)], *[all_of[Shard(2)]] * 2),
        "a sum": lambda: runtime.attention(partial, partial, partial),
        "a plain tensor": lambda: runtime.attention(few, q, q),
        "a single head of keys": lambda: runtime.attention(
            few, *[distribute_tensor(k, mesh, [Replicate()])] * 2
        ),
        "a part of packed sequences": lambda: runtime.flash_attn_varlen_func(
            *[packed] * 3, *[places] * 2
        ),
        "an output elsewhere": lambda: runtime.attention(*[all_of[Shard(0)]] * 3, out=out),
    }
    messages = {}
    for name, call in calls.items():
        with pytest.raises(runtime.InvalidArgument) as error:
            call()
        messages[name] = str(error.value)
    return messages


def _work(rank, folder) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    where = f"file://{folder}/group"
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=where)
    mesh = device_mesh("cpu", (2,))
    _right(mesh)
    _drops_out(mesh)
    torch.save(_refused(mesh), folder / f"refused{rank}")
    dist.barrier()  # else one's group may go while the other still sends
    dist.destroy_process_group()


def test_calls_on_parts_give_the_parts_of_the_whole_call_and_others_are_refused(tmp_path) -> None:
    mp.spawn(_work, (tmp_path,), 2)
    for rank in range(2):
        messages = torch.load(tmp_path / f"refused{rank}")
        assert messages.keys() == REFUSED.keys()
        for name, text in REFUSED.items():
            assert messages[name].startswith(text), messages[name]

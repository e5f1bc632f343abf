"""What another PyTorch must do with a built wheel: run by a Python that has both."""

import copy
import pickle

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import runtime

# once runtime is imported, which registers with it then
from torch.utils.flop_counter import FlopCounterMode  # isort: skip

q, k, v = torch.randn(3, 2, 19, 4, 64).unbind()
info = runtime.kernels("flash_forward", "cpu", "dtype == f32 and d_head == 64 and causal")[0]
kernel = runtime.kernel(info.key)
heads_first = (t.transpose(1, 2) for t in (q, k, v))
expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
expected = expected.transpose(1, 2)


def model(q, k, v):
    return runtime.attention(q, k, v, causal=True)


def heads_second(q, k, v):
    swapped = (t.transpose(1, 2) for t in (q, k, v))
    return runtime.sdpa(*swapped, is_causal=True).transpose(1, 2)


def decode(q, k, v):
    return runtime.decode(q[:, -1:], k, v)


class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return kernel(q, k, v)


def into_out(q, k, v):
    o = torch.zeros_like(q)
    kernel(q, k, v, out=o)
    return o


def gradient(call):
    leaf = q.clone().requires_grad_()
    call(leaf, k, v).sum().backward()
    return leaf.grad


def check(name, found, wanted=expected):
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, msg=lambda m: f"{name}: {m}")
    print(name)


check("attention", model(q, k, v))
check("operator", torch.ops.kernelmint.flash_forward(info.key, q, k, v)[0])
for backend in ("aot_eager", "inductor"):
    for dynamic in (None, True):
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
        check(f"compile {backend} dynamic={dynamic}", compiled(q, k, v))
check("compiled kernel", torch.compile(Model(), fullgraph=True, backend="aot_eager")(q, k, v))
for strict in (False, True):
    program = torch.export.export(Model(), (q, k, v), strict=strict)
    check(f"export strict={strict}", program.module()(q, k, v))
check("make_fx", make_fx(model)(q, k, v)(q, k, v))
check("jit.trace", torch.jit.trace(model, (q, k, v))(q, k, v))
check("functionalize", torch.func.functionalize(into_out)(q, k, v))
many = torch.func.vmap(model, in_dims=(2, None, None))(torch.stack([q, q], 2), k, v)
check("vmap", many, torch.stack([expected, expected]))
for dynamic in (None, True):
    torch._dynamo.reset()
    compiled = torch.compile(heads_second, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    check(f"compile sdpa dynamic={dynamic}", compiled(q, k, v))
compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
check("compile decode", compiled(q, k, v), decode(q, k, v))
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
check("gradient", gradient(compiled), gradient(model))
with torch.inference_mode():
    check("inference mode", model(q, k, v))
with torch.profiler.profile() as profile:
    kernel(q, k, v)
assert info.key in [event.key for event in profile.key_averages()]
with FlopCounterMode(display=False) as counter:
    model(q, k, v)
assert counter.get_total_flops() == 4 * 2 * 4 * 19 * 19 * 64
assert copy.deepcopy(kernel) is kernel
assert pickle.loads(pickle.dumps(kernel)) is kernel

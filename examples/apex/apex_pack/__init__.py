"""The functions of apex's extension `amp_C` for Adam, by the same names and signatures, on kernels
that know no PyTorch:

import apex_pack as amp_C

amp_C.multi_tensor_adam(65536, noop, [g, p, m, v], lr, beta1, beta2, epsilon, step, 1, 1, decay)

The kernels by key: kernelmint.kernels("apex_adam"), …
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import kernelmint

__version__ = "25.9"  # the version of upstream's functions

_MODES = ("l2", "decoupled")

Lists = Sequence[Sequence[Tensor]]


@torch.no_grad()
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Makes a step of Adam in place on [gradients, parameters, means, means of squares].

    `noop_flag` has no effect, as in upstream's kernel. `mode` is 0 for L2 regularisation, 1 for
    decoupled weight decay.
    """
    kernelmint.apex_adam(
        *tensor_lists,
        lr,
        (beta1, beta2),
        epsilon,
        step,
        _MODES[mode],
        bool(bias_correction),
        weight_decay,
        chunk_size,
    )


@torch.no_grad()
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: Tensor,
) -> None:
    """Makes the step with lr, step and inv_scale on the GPU, unless `noop_flag` is 1 there. The
    gradients are multiplied by inv_scale in place."""
    kernelmint.apex_adam_capturable(
        *tensor_lists,
        *(number.reshape(()) for number in (lr, step, inv_scale, noop_flag)),
        (beta1, beta2),
        epsilon,
        _MODES[mode],
        bool(bias_correction),
        weight_decay,
        chunk_size,
    )


@torch.no_grad()
def multi_tensor_adam_capturable_master(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: Tensor,
) -> None:
    """Makes the step on a fifth list of master weights; the parameters are their rounded copies."""
    kernelmint.apex_adam_master(
        *tensor_lists,
        *(number.reshape(()) for number in (lr, step, inv_scale, noop_flag)),
        (beta1, beta2),
        epsilon,
        _MODES[mode],
        bool(bias_correction),
        weight_decay,
        chunk_size,
    )

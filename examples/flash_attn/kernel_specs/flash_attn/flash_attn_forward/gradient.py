"""The gradients of flash_attn_forward."""

from ..gradients import gradient as forward_gradient

__all__ = ["forward_gradient"]

"""flash_attn_pack: FlashAttention-2 by the kernels of flash-attn 2.8.3.post2, whose functions have
its names and signatures.

from flash_attn_pack import flash_attn_func

import kernelmint

kernelmint.kernels("flash_attn_forward")                # what there is
"""

from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.3.post2"  # the version of upstream's functions

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

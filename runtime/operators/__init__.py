"""PyTorch operators of the families: torch.ops.kernelmint.<family> and <family>_out.

They exist for torch.compile, torch.export and whatever else needs a graph; eager calls go straight
to the kernel. The first argument of both is the key. <family> always returns every output, as an
empty tensor if an optional one was not asked for; <family>_out writes into tensors that are
passed by name, and is absent if a family has no outputs.
"""

from runtime.operators.autograd import refused as refused
from runtime.tensors import DTYPES as DTYPES

"""The private torch operators: schemas, shapes, and the call of a backend.

They make emulated arithmetic opaque to torch: torch.compile does not trace into it, fake tensors
get its shapes, and CPU and CUDA tensors reach the backend chosen for them. Formats, quantizers and
accumulators cross as integers (``to_ints``). The operators record no gradient: that is for
`lpkernels.functional`, which checks arguments too and is the only caller in the package. Calls by
torch (torch.ops, compiled and exported programs) are checked here (`_checks`). No operator returns
its input or a view of it.
"""

from lpkernels import backends
from lpkernels.backends import (
    BINS,
    COUNTS,
    NOT_FUSED,
    Convolution,
    Fused,
    How,
    Parts,
    Product,
    Scales,
    UpdateTensors,
    broadcast_batch,
    fprop_of,
    matmul_of,
)
from lpkernels.ops._checks import Codes, Rounds, Sums, has_every_code, rounds, sums
from lpkernels.ops._hadamard import hadamard
from lpkernels.ops._operator import (
    Packable,
    assume_constant_result,
    draw_seed,
    is_direct,
    is_in_cpu_memory,
)
from lpkernels.ops._packing import (
    dequantize,
    encode,
    pack,
    pack_scaled,
    packed_bytes,
    packs_at_once,
    unpack,
    unpack_powers,
)
from lpkernels.ops._products import add_bias, multiply, records
from lpkernels.ops._quantize import Counting, count, quantize, result_dtype
from lpkernels.ops._ranges import delayed, finite_range, largest, update_range
from lpkernels.ops._rows import ROW, Ints, Row
from lpkernels.ops._running import DIRECT, DISPATCHED, Operators, operators_for
from lpkernels.ops._scaled import scaled
from lpkernels.ops._update import update

BACKENDS = ("auto", *backends.names())
"""The values of a `backend` argument."""

__all__ = [
    "BACKENDS",
    "BINS",
    "COUNTS",
    "DIRECT",
    "DISPATCHED",
    "NOT_FUSED",
    "ROW",
    "Codes",
    "Convolution",
    "Counting",
    "Fused",
    "How",
    "Ints",
    "Operators",
    "Packable",
    "Parts",
    "Product",
    "Rounds",
    "Row",
    "Scales",
    "Sums",
    "UpdateTensors",
    "add_bias",
    "assume_constant_result",
    "broadcast_batch",
    "count",
    "delayed",
    "dequantize",
    "draw_seed",
    "encode",
    "finite_range",
    "fprop_of",
    "hadamard",
    "has_every_code",
    "is_direct",
    "is_in_cpu_memory",
    "largest",
    "matmul_of",
    "multiply",
    "operators_for",
    "pack",
    "pack_scaled",
    "packed_bytes",
    "packs_at_once",
    "quantize",
    "records",
    "result_dtype",
    "rounds",
    "scaled",
    "sums",
    "unpack",
    "unpack_powers",
    "update",
    "update_range",
]

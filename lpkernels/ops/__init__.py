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
    broadcast_shapes,
    fprop_of,
    matmul_of,
)
from lpkernels.ops._descriptions import ROW, Ints, Row, has_every_code, rounds
from lpkernels.ops._operator import (
    assume_constant_result,
    draw_seed,
    is_direct,
    is_in_cpu_memory,
    is_inside,
    needs_gradient,
)
from lpkernels.ops._packing import (
    dequantize,
    keeps_parts,
    pack,
    pack_scaled,
    packed_bytes,
    packs_at_once,
    unpack,
    unpack_powers,
    values_format,
)
from lpkernels.ops._products import add_bias, multiply, records
from lpkernels.ops._quantize import (
    count,
    count_quietly,
    delayed,
    finite_range,
    hadamard,
    largest,
    quantize,
    result_dtype,
    scaled,
    update_range,
)
from lpkernels.ops._running import DIRECT, DISPATCHED, Operators, operators_for
from lpkernels.ops._update import update

BACKENDS = ("auto", *backends.names())
"""The values of a `backend` argument."""

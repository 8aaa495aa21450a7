"""Results and gradients of calls, eager or compiled, and comparisons of them; the operators that
run in a call; a module that is written where it is used, and a function with its own backward; the
steps of a layer as the reference makes them, with the seeds of the contract."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lpkernels as lp
from lpkernels.nn._product_sizes import SIZES
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role, derive_seed
from tests.compare import assert_bit_equal


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Normal numbers that require a gradient."""
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def flat(value: Any) -> list[Tensor]:
    """The tensors of nested lists and tuples."""
    return [value] if isinstance(value, Tensor) else [t for part in value for t in flat(part)]


def output_gradients(*shapes: Sequence[int]) -> list[Tensor]:
    """The gradients that `gradients` passes to outputs of these shapes."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(tuple(shape), generator=generator) for shape in shapes]


def gradients(outputs: Any, inputs: Any) -> list[Tensor]:
    """The outputs, and the gradients of the inputs for `output_gradients`; each may be nested."""
    outputs = flat(outputs)
    given = output_gradients(*(y.shape for y in outputs))
    return [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, flat(inputs), given)]


def backward(function: Callable[..., Tensor], inputs: Iterable[Tensor]) -> list[Tensor]:
    """As `gradients`, by `backward`, on copies of the inputs."""
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    y = function(*copies)
    y.backward(*output_gradients(y.shape))
    return [y.detach(), *(x.grad for x in copies)]


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Resets the compiler and allows recurrent layers, which torch compiles only where allowed."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


def compiled(
    function: Callable[..., Any], dynamic: bool | None = None, backend: str = "aot_eager"
) -> Callable[..., Any]:
    """The function as one graph, in a compiler that has none of other tests."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)


def graphs() -> int:
    """The number of graphs since the test began; a break of a graph fails."""
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


@contextmanager
def kept_bytes(*excluded: Tensor) -> Iterator[dict[int, int]]:
    """The bytes of every storage that the block keeps for backward, parameters left out."""
    found: dict[int, int] = {}
    held = []
    known = {t.untyped_storage().data_ptr() for t in excluded}

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        held.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        yield found


def same(
    got: Sequence[Any], want: Sequence[Any], name: str = "result", parts: Sequence[str] = ()
) -> None:
    """The lists have one length, and the same bits; what differs is named by its place or part."""
    for place, (a, c) in enumerate(zip(got, want, strict=True)):
        assert_bit_equal(a, c, f"{name} {parts[place] if parts else place}")


def close(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """The lists have one length, and the same values within a few roundings of float32."""
    for a, c in zip(got, want, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)


def alike(functions: Iterable[Callable[..., Any]], call: Callable[[Any], Any]) -> None:
    """`call` makes the same bits of every function, after the same torch.manual_seed."""
    results = []
    for function in functions:
        torch.manual_seed(1)
        results.append(flat(call(function)))
    for result in results[1:]:
        same(result, results[0])


_OURS = "lpkernels::_"
_WAIT = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")


class Operators(TorchDispatchMode):
    """Notes the operators that run, in order, such as aten::mm and lpkernels::_multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        #: The operators of lpkernels by name, such as add_bias; a product by its kind.
        self.emulated: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.names.append(name)
        if name.startswith(_OURS):
            self.emulated.append(args[0] if name == f"{_OURS}multiply" else name[len(_OURS) :])
        return func(*args, **(kwargs or {}))

    @property
    def products_of_torch(self) -> set[str]:
        """The operators of torch that multiplied."""
        return {name for name in self.names if name.startswith("aten::")} & {*SIZES}


class Reads(TorchDispatchMode):
    """Counts the times that Python reads a value, or a size that depends on one, from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in _WAIT
        return func(*args, **(kwargs or {}))


class Computes(nn.Module):
    """A function of the module and its inputs, with the submodules and parameters it is given."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


class OwnBackward(torch.autograd.Function):
    """x @ w with a backward pass of its own, which torch computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad @ w.mT, x.mT @ grad


#: The seed of the calls whose results are composed of steps; int64 has negative ones too.
SEED = -123456789


def signed(seed: int) -> torch.Tensor:
    """The int64 tensor with the 64 bits of a seed."""
    return torch.tensor(seed - (seed >> 63 << 64))


def how(backend: str = "auto") -> dict[str, Any]:
    """The arguments of a call that draws from SEED on a backend."""
    return {"generator": torch.tensor(SEED), "backend": backend}


def assert_composed(
    call: Callable[..., Any], inputs: Any, want: Sequence[Any], backends: Iterable[str]
) -> None:
    """On every backend the call gives this result and these gradients of the inputs."""
    for backend in backends:
        same(gradients(call(**how(backend)), inputs), want, backend, ("y", "dx", "dw", "db", "d"))


def transposed(a: np.ndarray) -> np.ndarray:
    """The matrices a (..., M, N) as (..., N, M)."""
    return np.swapaxes(a, -1, -2)


class Steps:
    """Roundings and products of one call under a recipe, on arrays of float32.

    Every rounding and every product draws from the seed of its role.
    """

    def __init__(self, recipe: lp.Recipe, seed: int = SEED) -> None:
        self.recipe, self.seed = recipe, seed

    def seed_of(self, role: str) -> int:
        return derive_seed(self.seed, Role[role.upper()])

    def rounded(self, x: np.ndarray, field: str) -> np.ndarray:
        """x as the recipe's quantizer of this name rounds it."""
        x, quantizer = np.ascontiguousarray(x), getattr(self.recipe, field)
        if quantizer is None:
            return x
        site = SITE_OUTPUT if field == "output" else SITE_QUANTIZE
        return twin.quantize(x, quantizer, seed=self.seed_of(field), site=site)

    def matmul(
        self, a: np.ndarray, b: np.ndarray, name: str, bias: Any = None, role: str = ""
    ) -> np.ndarray:
        """a @ b + bias in the recipe's accumulator `name`."""
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        acc = getattr(self.recipe, name)
        return twin.matmul(a, b, bias, acc, seed=self.seed_of(role or name))

    def product(self, x: np.ndarray, w: np.ndarray, b: Any = None) -> np.ndarray:
        """x @ w^T + b, of x (..., M, K) and w (..., N, K); `gradients` is its backward pass."""
        self.x, self.w = self.rounded(x, "input"), self.rounded(w, "weight")
        b = b if b is None else self.rounded(b, "bias")
        return self.rounded(self.matmul(self.x, transposed(self.w), "fprop", b), "output")

    def gradients(self, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Those of x, w and b (of matrices), of the last product."""
        g = self.rounded(g, "grad_output")
        dx = self.rounded(self.matmul(g, self.w, "dgrad"), "grad_input")
        dw = self.rounded(self.matmul(transposed(g), self.x, "wgrad"), "grad_weight")
        return dx, dw, self.bias_gradient(g.reshape(-1, g.shape[-1]))

    def bias_gradient(self, g: np.ndarray) -> np.ndarray:
        """The sums over the rows of g (rows, channels): (channels,)."""
        ones = np.ones((1, len(g)), np.float32)
        return self.matmul(ones, g, "wgrad", role="grad_bias").reshape(-1)

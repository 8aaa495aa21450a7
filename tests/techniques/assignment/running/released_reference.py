"""Training as the released code of Lee et al. 2023 does it, in plain torch autograd.

It is written from a description of that code (wonyeol/mixed-prec-train, commit 5ac37b2), and shares
no line with `lpkernels.techniques.assignment`. `ReleasedRun` groups, demotes, rounds, promotes and
scales by itself; a network is a function of a run and its input.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class Format(NamedTuple):
    """Bits of exponent and of mantissa, and the bias of the exponent; no code is reserved."""

    exponent: int
    mantissa: int
    bias: int

    @property
    def threshold(self) -> float:
        """Overflow begins here, half a unit above the largest value; times 2^bias."""
        return 2.0**2 ** (self.exponent - 1) * (2 - 2.0 ** -(self.mantissa + 1))


HIGH = Format(6, 9, 0)
LOW = {"P": Format(4, 3, 4), "Y": Format(4, 3, 4), "GY": Format(5, 2, 0), "GP": HIGH}


def overflowed(x: Tensor, fmt: Format) -> Tensor:
    return ~(x.abs() * 2.0**fmt.bias < fmt.threshold)


def rounded(x: Tensor, fmt: Format, saturates: bool) -> Tensor:
    """x to nearest, ties away from zero, by its bits in float32; below the smallest normal value by
    a sum with this value, which float32 rounds first."""
    least = 2.0 ** (2 - 2 ** (fmt.exponent - 1))
    size = x.abs() * 2.0**fmt.bias
    small = size < least
    size = torch.where(small, size + least, size)
    dropped = 23 - fmt.mantissa
    bits = (size.view(torch.int32) + (1 << (dropped - 1))) >> dropped << dropped
    size = bits.view(torch.float32)
    size = torch.where(small, size - least, size)
    largest = 2.0**2 ** (fmt.exponent - 1) * (2 - 2.0**-fmt.mantissa)
    size = torch.where(overflowed(x, fmt), largest if saturates else torch.inf, size)
    y = torch.copysign(size * 2.0**-fmt.bias, x) + 0.0
    return torch.where(x.isnan(), torch.nan, y)


class _Stored(torch.autograd.Function):
    """A rounded result, with the gradient of the result itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: Format) -> Tensor:
        return rounded(x, fmt, True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class _Read(torch.autograd.Function):
    """An operand, whose share of the gradient is rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: Format) -> Tensor:
        ctx.fmt = fmt
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return rounded(grad, ctx.fmt, False), None


class _LogSoftmax(torch.autograd.Function):
    """Rounded logarithms of shares; backward reads them as they are stored."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fmt: Format, count: Callable[[Tensor], None]) -> Tensor:
        logs = F.log_softmax(x, 1)
        count(logs)
        y = rounded(logs, fmt, True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return grad - torch.exp(y) * grad.sum(1, keepdim=True), None, None


class Value(NamedTuple):
    """A result and the number of its operation."""

    x: Tensor
    number: int


Network = Callable[["ReleasedRun", Value], Value]
Key = tuple[str, int | str]


class ReleasedRun:
    """A network that trains under the assignment of a ratio.

    network: its last result is what the loss's logarithms of shares read. parameters: in the order
        in which the network reads them; they are copied. batch: fixes the sizes of results.
    ratio, order, seed: of the demotion. theta: the overflow that promotes. scale, interval: of the
        loss scaler.
    low: the tensors in low precision: ("Y", number of the operation), ("P", name) and the two
        gradients. groups: the group and the elements of every tensor.
    """

    def __init__(
        self,
        network: Network,
        parameters: dict[str, Tensor],
        batch: tuple[Tensor, Tensor],
        *,
        ratio: float,
        order: str = "decreasing",
        seed: int = 0,
        theta: float = 0.01,
        scale: float = 65536.0,
        interval: int = 2000,
        lr: float = 0.1,
    ) -> None:
        self.network = network
        self.masters = {n: p.detach().clone().requires_grad_() for n, p in parameters.items()}
        self.optimizer = torch.optim.SGD(
            self.masters.values(), lr=lr, momentum=0.9, weight_decay=5e-4
        )
        self.theta, self.scale, self.interval, self.good = theta, scale, interval, 0
        self.groups: dict[Key, tuple[int, int]] = {}
        self.low: set[Key] = set()
        self._forward(*batch)
        self._demote(ratio, order, seed)

    def step(self, x: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor], list[Key], bool]:
        """The loss, the scaled gradients, the tensors that were promoted, and whether the step was
        skipped."""
        loss = self._forward(x, target)
        (loss * self.scale).backward()
        grads = {n: rounded(p.grad, HIGH, False) for n, p in self._rounded.items()}
        skipped = not all(bool(grad.isfinite().all()) for grad in grads.values())
        if not skipped:
            for name, master in self.masters.items():
                master.grad = grads[name] / self.scale
            self.optimizer.step()
        self.good = 0 if skipped else self.good + 1
        if skipped:
            self.scale *= 0.5
        elif self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0
        return loss.detach(), grads, self._promote(), skipped

    def conv(self, read: Value, stride: int = 1, bias: bool = False) -> Value:
        weight = self._parameter(read)
        added = self._parameter(read) if bias else None
        groups = read.x.shape[1] // weight.shape[1]

        def compute(x: Tensor) -> Tensor:
            return F.conv2d(x, weight, added, stride, weight.shape[2] // 2, 1, groups)

        return self._result(compute, read, opens=True)

    def linear(self, read: Value) -> Value:
        weight, bias = self._parameter(read), self._parameter(read)
        return self._result(lambda x: F.linear(x, weight, bias), read, opens=True)

    def norm(self, read: Value) -> Value:
        weight, bias = self._parameter(read), self._parameter(read)
        return self._result(lambda x: F.batch_norm(x, None, None, weight, bias, True), read)

    def relu(self, read: Value) -> Value:
        return self._result(torch.relu, read)

    def add(self, left: Value, right: Value) -> Value:
        return self._result(torch.add, left, right)

    def cat(self, left: Value, right: Value) -> Value:
        return self._result(lambda *both: torch.cat(both, 1), left, right)

    def halve(self, read: Value) -> tuple[Value, Value]:
        """Two results, each of half of the channels."""
        half = read.x.shape[1] // 2
        left = self._result(lambda x: x[:, :half].clone(), read)
        return left, self._result(lambda x: x[:, half:], read)

    def max_pool(self, read: Value) -> Value:
        return self._result(lambda x: F.max_pool2d(x, 2), read)

    def avg_pool(self, read: Value) -> Value:
        """All positions, flattened."""
        pooled = self._result(lambda x: F.avg_pool2d(x, x.shape[2:]), read)
        return Value(pooled.x.flatten(1), pooled.number)

    def layer(self, read: Value, stride: int = 1, bias: bool = False) -> Value:
        """A convolution, a norm and ReLU."""
        return self.relu(self.norm(self.conv(read, stride, bias)))

    def _forward(self, x: Tensor, target: Tensor) -> Tensor:
        self._names: Iterator[str] = iter(self.masters)
        self._number = self._group = 0
        self._overflow: dict[Key, tuple[int, int]] = {}
        self._rounded: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            p = master.detach()
            self._count(("P", name), p)
            self._rounded[name] = rounded(p, self._format("P", name), True).requires_grad_()
        self._group = -1
        output = self.network(self, self._result(lambda: x, opens=True))
        logs = _LogSoftmax.apply(
            self._read(output), self._format("Y", self._number),
            lambda y: self._noted(y, len(x) * y.shape[1]),
        )  # fmt: skip
        read = self._read(Value(logs, self._number - 1))
        return self._stored(F.nll_loss(read, target), len(x))

    def _format(self, kind: str, which: int | str) -> Format:
        return LOW[kind] if (kind, which) in self.low else HIGH

    def _read(self, value: Value) -> Tensor:
        return _Read.apply(value.x, self._format("GY", value.number))

    def _result(
        self, compute: Callable[..., Tensor], *operands: Value, opens: bool = False
    ) -> Value:
        self._group += opens
        y = compute(*map(self._read, operands))
        number = self._number
        return Value(self._stored(y, y.numel()), number)

    def _stored(self, y: Tensor, numel: int) -> Tensor:
        number = self._number
        self._noted(y.detach(), numel)
        return _Stored.apply(y, self._format("Y", number))

    def _noted(self, y: Tensor, numel: int) -> None:
        """Counts a result, before it is rounded."""
        self._count(("Y", self._number), y)
        for kind in ("Y", "GY"):
            self.groups.setdefault((kind, self._number), (self._group, numel))
        self._number += 1

    def _parameter(self, read: Value) -> Tensor:
        name = next(self._names)
        home = self.groups["Y", read.number][0]
        for kind in ("P", "GP"):
            self.groups.setdefault((kind, name), (home, self.masters[name].numel()))
        return self._rounded[name]

    def _count(self, key: Key, x: Tensor) -> None:
        self._overflow[key] = int(overflowed(x, self._format(*key)).sum()), x.numel()

    def _demote(self, ratio: float, order: str, seed: int) -> None:
        sizes: dict[int, int] = {}
        for home, numel in self.groups.values():
            sizes[home] = sizes.get(home, 0) + numel
        taken = sorted(sizes)
        if order == "random":
            random.seed(seed)
            random.shuffle(taken)
        else:
            taken.sort(key=lambda each: sizes[each] * (-1 if order == "decreasing" else 1))
        total, share = sum(sizes.values()), 0.0
        self.lowered: list[int] = []
        for each in taken:
            if ratio == 0 or (ratio < 1 and share >= ratio):
                break
            self.lowered.append(each)
            share += sizes[each] / total
        self.low = {key for key, (home, _) in self.groups.items() if home in self.lowered}

    def _promote(self) -> list[Key]:
        theta = np.float32(self.theta)
        found = [
            key
            for key, (count, numel) in self._overflow.items()
            if key in self.low and np.float32(count) / np.float32(numel) >= theta
        ]
        self.low -= set(found)
        return found


def resnet18(run: ReleasedRun, x: Value) -> Value:
    y = run.layer(x)
    for stage in range(4):
        for block in range(2):
            changes = stage > 0 and block == 0
            stride = 2 if changes else 1
            z = run.norm(run.conv(run.layer(y, stride)))
            y = run.relu(run.add(z, run.norm(run.conv(y, stride)) if changes else y))
    return run.linear(run.avg_pool(y))


def squeezenet(run: ReleasedRun, x: Value) -> Value:
    y = run.layer(x, bias=True)
    for fire in range(8):
        y = run.max_pool(y) if fire in (0, 3, 7) else y
        squeezed = run.layer(y, bias=True)
        left, right = (run.norm(run.conv(squeezed, bias=True)) for _ in range(2))
        y = run.relu(run.cat(left, right))
    return run.avg_pool(run.conv(y, bias=True))


def shufflenetv2(run: ReleasedRun, x: Value) -> Value:
    y = run.layer(x)
    for units in (4, 8, 4):
        for unit in range(units):
            stride = 2 if unit == 0 else 1
            if unit == 0:
                left = run.layer(run.norm(run.conv(y, stride)))
                right = y
            else:
                left, right = run.halve(y)
            right = run.layer(run.norm(run.conv(run.layer(right), stride)))
            both = run.cat(left, right)
            n, c, h, w = both.x.shape
            y = Value(
                both.x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w), both.number
            )
    return run.linear(run.avg_pool(run.layer(y)))

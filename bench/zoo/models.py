"""Small models of fourteen kinds, each with a batch and a loss, written as their users write
them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

WIDTH = 32


class SelectiveScan(nn.Module):
    """A block of Mamba: a causal depthwise convolution, and a scan with steps of its own."""

    def __init__(self, state: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inward, self.outward = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.conv = nn.Conv1d(2 * WIDTH, 2 * WIDTH, 4, padding=3, groups=2 * WIDTH)
        self.selection = nn.Linear(2 * WIDTH, 4 + 2 * state)
        self.step = nn.Linear(4, 2 * WIDTH)
        self.log_decay = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(2 * WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.inward(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
        state = self.log_decay.shape[1]
        rank, b, c = self.selection(u).split([4, state, state], -1)
        step = F.softplus(self.step(rank))
        decay = torch.exp(-step[..., None] * self.log_decay.exp())
        taken = (step * u)[..., None] * b[:, :, None]
        h, outputs = torch.zeros_like(taken[:, 0]), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + taken[:, t]
            outputs.append((h @ c[:, t, :, None]).squeeze(-1))
        return x + self.outward(torch.stack(outputs, 1) * F.silu(gate))


def mamba() -> nn.Module:
    blocks = [SelectiveScan() for _ in range(2)]
    return nn.Sequential(nn.Embedding(64, WIDTH), *blocks, nn.Linear(WIDTH, 64))


class LoopOfExperts(nn.Module):
    """Each token goes to one expert, and each expert multiplies its tokens."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 2 * WIDTH) / 6)
        self.down = nn.Parameter(torch.randn(experts, 2 * WIDTH, WIDTH) / 8)

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1, keepdim=True)
        return x + weight * self.experts(x, chosen.squeeze(-1))

    def experts(self, x: Tensor, chosen: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for e in range(len(self.up)):
            y[chosen == e] = F.gelu(x[chosen == e] @ self.up[e]) @ self.down[e]
        return y


class GroupsOfExperts(LoopOfExperts):
    """The tokens are sorted by expert and multiplied at once, as in transformers."""

    def experts(self, x: Tensor, chosen: Tensor) -> Tensor:
        order = chosen.argsort(stable=True)
        ends = chosen.bincount(minlength=len(self.up)).cumsum(0).int()
        hidden = F.gelu(F.grouped_mm(x[order], self.up, offs=ends))
        return F.grouped_mm(hidden, self.down, offs=ends)[order.argsort()]


def experts() -> nn.Module:
    return nn.Sequential(nn.Linear(16, WIDTH), LoopOfExperts(), GroupsOfExperts())


class GraphConvolutions(nn.Module):
    """The neighbours' features are averaged by the adjacency matrix, dense or sparse."""

    def __init__(self, is_sparse: bool) -> None:
        super().__init__()
        edges = torch.rand(48, 48) < 0.1
        adjacency = (edges | edges.t() | torch.eye(48, dtype=torch.bool)).float()
        adjacency = adjacency / adjacency.sum(1, keepdim=True)
        self.adjacency = adjacency.to_sparse() if is_sparse else adjacency
        self.first, self.second = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.neighbours(self.second(torch.relu(self.neighbours(self.first(x)))))

    def neighbours(self, x: Tensor) -> Tensor:
        a = self.adjacency
        return torch.sparse.mm(a, x) if a.is_sparse else a @ x


def convolved(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = convolved(1, 16), convolved(16, 32)
        self.up, self.merge = nn.ConvTranspose2d(32, 16, 2, stride=2), convolved(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.down1(x)
        y = self.up(self.down2(F.max_pool2d(skipped, 2)))
        return self.head(self.merge(torch.cat([skipped, y], 1)))


class TiedSeq2Seq(nn.Module):
    """An encoder and a decoder with attention; one matrix embeds tokens and scores them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.decoder, self.mixed = nn.GRUCell(WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.tokens(source))
        h, scores = last[0], []
        for t in range(target.shape[1]):
            h = self.decoder(self.tokens(target[:, t]), h)
            weights = torch.bmm(memory, h[:, :, None]).softmax(1)
            read = torch.bmm(weights.mT, memory)[:, 0]
            mixed = torch.tanh(self.mixed(torch.cat([h, read], -1)))
            scores.append(F.linear(mixed, self.tokens.weight))
        return torch.stack(scores, 1)


def autoencoder() -> nn.Module:
    sizes = [64, WIDTH, 8, WIDTH, 64]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class NormedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (weight_norm(nn.Conv2d(16, 16, 3, padding=1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


def weight_normed() -> nn.Module:
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), weight_norm(nn.Linear(16, 10))]
    return nn.Sequential(weight_norm(nn.Conv2d(1, 16, 3)), NormedBlock(), NormedBlock(), *pooled)


class LoRA(nn.Module):
    """A frozen layer, and a product of two thin matrices beside it."""

    def __init__(self, before: int, after: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(before, after).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, before) / math.sqrt(before))
        self.b = nn.Parameter(torch.zeros(after, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.a.t()) @ self.b.t()


def lora() -> nn.Module:
    return nn.Sequential(LoRA(WIDTH, 64), nn.GELU(), LoRA(64, WIDTH), nn.Linear(WIDTH, 10))


class SavedByHand(torch.autograd.Function):
    """A linear layer whose backward pass its user wrote."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad @ w, grad.t() @ x


class OwnFunction(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return SavedByHand.apply(input, self.weight) + self.bias


def own_functions() -> nn.Module:
    return nn.Sequential(OwnFunction(WIDTH, 64), nn.ReLU(), OwnFunction(64, WIDTH), nn.ReLU(),
                         nn.Linear(WIDTH, 10))  # fmt: skip


class Einsums(nn.Module):
    """Attention and a factored layer, the last an einsum of three operands."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Parameter(torch.randn(WIDTH, heads, WIDTH // heads) / 6) for _ in range(4)
        )
        self.left = nn.Parameter(torch.randn(WIDTH, 8) / 6)
        self.right = nn.Parameter(torch.randn(WIDTH, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("ntd,dhe->nhte", x, w) for w in (self.query, self.key, self.value))
        scores = torch.einsum("nhqe,nhke->nhqk", q, k) / math.sqrt(q.shape[-1])
        read = torch.einsum("nhqk,nhke->nqhe", scores.softmax(-1), v)
        x = x + torch.einsum("nqhe,dhe->nqd", read, self.out)
        return x + torch.einsum("ntd,dr,or->nto", x, self.left, self.right)


class Spectral(nn.Module):
    """Channels mixed in the frequency domain, by complex weights."""

    def __init__(self, modes: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, modes, dtype=torch.cfloat) / WIDTH)
        self.local = nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        modes = self.weight.shape[-1]
        spectrum = torch.einsum("nix,iox->nox", torch.fft.rfft(x)[..., :modes], self.weight)
        return F.gelu(torch.fft.irfft(spectrum, n=x.shape[-1]) + self.local(x))


def fourier_operator() -> nn.Module:
    ends = nn.Conv1d(2, WIDTH, 1), nn.Conv1d(WIDTH, 1, 1)
    return nn.Sequential(ends[0], Spectral(), Spectral(), ends[1])


class RWKV(nn.Module):
    """A state of outer products that decays, read by the receptance; then mixing of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.receptance, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.decay = nn.Parameter(torch.linspace(-3, 1, WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        r, k, v = self.receptance(x), self.key((x + before) / 2), self.value(x)
        state, outputs = x.new_zeros(len(x), WIDTH, WIDTH), []
        for t in range(x.shape[1]):
            state = state * torch.sigmoid(self.decay)[:, None] + k[:, t, :, None] * v[:, t, None]
            outputs.append((r[:, t, None] @ state)[:, 0])
        x = x + self.out(torch.stack(outputs, 1))
        return x + self.down(torch.relu(self.up(x)).square())


def rwkv() -> nn.Module:
    return nn.Sequential(nn.Embedding(64, WIDTH), RWKV(), RWKV(), nn.Linear(WIDTH, 64))


class Quantiles(nn.Module):
    """The quantiles of a value, at levels that enter as cosines."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.level = nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor, levels: Tensor) -> Tensor:
        waves = torch.cos(math.pi * levels[..., None] * torch.arange(WIDTH))
        mixed = torch.relu(self.state(x))[:, None] * torch.relu(self.level(waves))
        return self.head(mixed).squeeze(-1)


def quantile_huber(y: Tensor, x: Tensor, levels: Tensor) -> Tensor:
    error = x.mean(1, keepdim=True) - y
    weight = (levels - (error < 0).float()).abs()
    return (weight * F.huber_loss(y.float(), y.float() + error, reduction="none")).mean()


class Kind(NamedTuple):
    """A kind of models. loss: of the output and the batch. context: in which forward runs."""

    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]
    loss: Callable[..., Tensor] = lambda y, *batch: y.square().mean()
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def tokens() -> tuple[Tensor]:
    return (torch.randint(64, (4, 16)),)


def next_token(y: Tensor, x: Tensor, *_: Tensor) -> Tensor:
    return F.cross_entropy(y.flatten(0, -2), x.flatten())


def of_shape(*shape: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(shape),)


ZOO: dict[str, Kind] = {
    "Mamba: selective scan": Kind(mamba, tokens, next_token),
    "experts: `x @ w[e]` and `grouped_mm`": Kind(experts, of_shape(64, 16)),
    "graph convolutions, dense": Kind(lambda: GraphConvolutions(False), of_shape(48, 16)),
    "graph convolutions, sparse": Kind(lambda: GraphConvolutions(True), of_shape(48, 16)),
    "U-Net": Kind(UNet, of_shape(2, 1, 16, 16)),
    "sequence to sequence, tied": Kind(
        TiedSeq2Seq, lambda: tokens() + tokens(), lambda y, s, t: next_token(y, t)
    ),
    "autoencoder": Kind(autoencoder, of_shape(32, 64), lambda y, x: F.mse_loss(y, x)),
    "ResNet with `weight_norm`": Kind(weight_normed, of_shape(2, 1, 16, 16)),
    "LoRA": Kind(lora, of_shape(32, WIDTH)),
    "`torch.autograd.Function`": Kind(own_functions, of_shape(32, WIDTH)),
    "`einsum` net": Kind(Einsums, of_shape(4, 16, WIDTH)),
    "Fourier neural operator": Kind(fourier_operator, of_shape(4, 2, WIDTH)),
    "RWKV": Kind(rwkv, tokens, next_token),
    "quantile Huber, autocast": Kind(
        Quantiles, lambda: (torch.randn(32, 16), torch.rand(32, 8)), quantile_huber,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ),
}  # fmt: skip

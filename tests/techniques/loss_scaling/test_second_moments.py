"""Adam's second moment in 4 bits without a zero, against Adam written with plain torch."""

from typing import Any

import torch
from torch import Tensor, nn

from lpkernels.techniques.loss_scaling import MasterWeights, memory
from tests.compare import assert_bit_equal
from tests.support.refusals import refused
from tests.techniques.loss_scaling import optimizers

FORMAT = "block128_linear4_sfp32"
# Rows of three blocks, the last of them short; a vector of one short block; a scalar.
SHAPES = ((5, 300), (13,), ())
LR, BETAS, EPS = 0.01, (0.9, 0.999), 1e-8


def without_zero(moment: Tensor) -> Tensor:
    """Blocks of 128 along the last dimension: the nearest of (i + 1) / 16 times the largest."""
    flat, out = moment.reshape(-1, moment.shape[-1] if moment.dim() else 1), []
    for block in (flat[:, i : i + 128] for i in range(0, flat.shape[1], 128)):
        largest = block.amax(1, keepdim=True)
        places = (block.double() / largest.double()).nan_to_num(0) * 16
        # A tie goes to the even code, which is the odd multiple.
        down = places.floor()
        nearest = torch.where(places - down == 0.5, down + (down % 2 == 0), places.round())
        out.append((nearest.clamp(1, 16) / 16 * largest.double()).float())
    return torch.cat(out, 1).view(moment.shape)


class Adam:
    """Kingma and Ba 2015, algorithm 1, in torch's order of operations, with a rounded moment."""

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = [w.clone() for w in weights]
        self.means = [torch.zeros_like(w) for w in weights]
        self.moments = [torch.zeros_like(w) for w in weights]
        self.steps = 0

    def step(self, gradients: list[Tensor]) -> None:
        self.steps += 1
        short, long = (1 - beta**self.steps for beta in BETAS)
        for i, g in enumerate(gradients):
            self.means[i].lerp_(g, 1 - BETAS[0])
            moment = self.moments[i].mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
            divisor = (moment.sqrt() / long**0.5).add_(EPS)
            self.weights[i].addcdiv_(self.means[i], divisor, value=-(LR / short))
            self.moments[i] = without_zero(moment)


def wrapped(held: list[nn.Parameter], **options: Any) -> MasterWeights:
    inner = torch.optim.Adam(held, lr=LR, betas=BETAS, eps=EPS, foreach=False)
    return MasterWeights(inner, weight="fp32", state={"exp_avg_sq": FORMAT}, **options)


def gradients_of(held: list[nn.Parameter], step: int) -> list[Tensor]:
    """Some rows are zero from the first step on, and some values in all of them."""
    made = [optimizers.gradient(p, number, step) for number, p in enumerate(held)]
    made[0][1] = 0
    made[0][:, 7] = 0
    made[0][2, :128] = 0 if step < 5 else made[0][2, :128]
    return made


def test_twenty_steps_are_those_of_plain_adam_to_the_bit_also_after_a_resume() -> None:
    held = optimizers.parameters(shapes=SHAPES)
    optimizer, plain = wrapped(held), Adam([p.detach() for p in held])
    for step in range(1, 21):
        gradients = gradients_of(held, step)
        for p, g in zip(held, gradients, strict=True):
            p.grad = g.clone()
        optimizer.step()
        plain.step(gradients)
        for p, w in zip(held, plain.weights, strict=True):
            assert_bit_equal(p.detach(), w, str(step))
        if step == 9:
            state = optimizer.state_dict()
            optimizer = wrapped(held)
            optimizer.load_state_dict(state)
    assert (plain.moments[0][1] == 0).all() and plain.moments[0][0].min() > 0


def test_moments_are_kept_in_four_bits() -> None:
    held = optimizers.parameters(shapes=SHAPES)
    optimizer = wrapped(held)
    optimizers.train(optimizer, held, [1])
    kept = [optimizer.state[p]["exp_avg_sq"] for p in held]
    assert [len(codes) for codes in kept] == [15 * 4 + 750, 4 + 7, 4 + 1]
    (row,) = [row for row in memory(optimizer) if row.what == "exp_avg_sq"]
    assert (row.fmt, row.values, row.bytes) == (FORMAT, 1514, 826)
    assert row.bits == 17 * 32 + 1514 * 4


def of(optimizer: type[torch.optim.Optimizer], **formats: Any) -> MasterWeights:
    held = optimizers.parameters(shapes=SHAPES)
    return MasterWeights(optimizer(held), **{"weight": "fp32", **formats})


NONE = f"{FORMAT} has no zero and no negative values; it is for states that are never negative"
BY_NAME = r"state=\{'exp_avg_sq': 'block128_linear4_sfp32'\}"
test_what_may_be_negative_or_zero_refuses_it = refused(
    [
        *((lambda name=name: of(torch.optim.Adam, **{name: FORMAT}), f": {name}: {NONE}")
          for name in ("weight", "master", "grad", "compensation", "state")),
        (lambda: of(torch.optim.Adam, state={"exp_avg": FORMAT}), f"exp_avg: {NONE}.*{BY_NAME}"),
        (lambda: of(torch.optim.Adam, state={"exp_avg_sq": FORMAT}, fused=True),
         "parameter '0': .*exp_avg_sq"),
    ],
    ValueError,
)  # fmt: skip


def test_other_optimizers_have_states_that_are_never_negative() -> None:
    for kind, name in (("RMSprop", "square_avg"), ("Adagrad", "sum"), ("Adamax", "exp_inf")):
        optimizer = of(getattr(torch.optim, kind), state={name: FORMAT})
        held = optimizer.param_groups[0]["params"]
        optimizers.train(optimizer, held, [1, 2])
        assert optimizer.state[held[0]][name].dtype == torch.uint8
        assert all(p.isfinite().all() for p in held)

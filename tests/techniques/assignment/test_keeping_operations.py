"""kept_memory against the memory that a step keeps: single operations, attention with masks,
recurrent layers, layers under a recipe.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.experiments.workloads.models import Task, build_model
from tests.loops import each, rows
from tests.support.computes import Computes
from tests.techniques.assignment.running.runs import memories

RATIOS = (0.0, 0.6, 1.0)


def check_function(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Checks a function of two results of linear layers, 4 x 12, and a parameter of 12."""
    torch.manual_seed(0)
    parts = {"a": nn.Linear(6, 12), "b": nn.Linear(6, 12), "p": nn.Parameter(torch.rand(12) + 0.5)}
    model = Computes(lambda m, x: function(m.a(x), m.b(x), m.p), **parts)
    memories(model, lambda y, _: y.sum(), (torch.randn(4, 6), None), *RATIOS)


def images(x: Tensor) -> Tensor:
    return x.view(4, 3, 2, 2)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add a number": lambda a, b, p: a + 1,
    "multiply": lambda a, b, p: a * b,
    "multiply by a number": lambda a, b, p: a * 2,
    "multiply by a constant": lambda a, b, p: a * torch.arange(12.0),
    "multiply by a parameter": lambda a, b, p: a * p,
    "divide a number": lambda a, b, p: 2 / a,
    "lerp": lambda a, b, p: torch.lerp(a, b, 0.5),
    "addcmul": lambda a, b, p: torch.addcmul(a, b, p),
    "maximum": lambda a, b, p: torch.maximum(a, b),
    "where": lambda a, b, p: torch.where(a.detach() > 0, a, b),
    "masked_fill": lambda a, b, p: a.masked_fill(torch.eye(4, 12) > 0, 0.0),
    "in place": lambda a, b, p: (a + 1).relu_().mul_(2),
    "gather": lambda a, b, p: a.gather(1, torch.zeros(4, 1, dtype=torch.int64)),
    "index": lambda a, b, p: a[torch.tensor([0, 1])],
    "embedding": lambda a, b, p: F.embedding(torch.tensor([0, 1]), a),
    "max": lambda a, b, p: a.max(1)[0],
    "amax": lambda a, b, p: a.amax(1),
    "norm": lambda a, b, p: a.norm(dim=1),
    "std": lambda a, b, p: a.std(1),
    "logsumexp": lambda a, b, p: a.logsumexp(1),
    "prod": lambda a, b, p: a.prod(1),
    "cumsum": lambda a, b, p: a.cumsum(1),
    "softsign": lambda a, b, p: F.softsign(a),
    "logsigmoid": lambda a, b, p: F.logsigmoid(a),
    "rrelu": lambda a, b, p: F.rrelu(a, training=True),
    "dropout2d": lambda a, b, p: F.dropout2d(images(a), 0.5),
    "avg pool": lambda a, b, p: F.adaptive_avg_pool2d(a.view(4, 1, 4, 3), 2),
    "max pool": lambda a, b, p: F.max_pool2d(images(a), 2),
    "lp_pool2d": lambda a, b, p: F.lp_pool2d(images(a), 2, 2),
    "batch_norm without scale": lambda a, b, p: F.batch_norm(a, None, None, training=True),
    "group_norm": lambda a, b, p: F.group_norm(a, 3, p, p),
    "rms_norm": lambda a, b, p: F.rms_norm(a, (12,), p),
    "normalize": lambda a, b, p: F.normalize(a),
    "contiguous": lambda a, b, p: a.t().contiguous() * b.t(),
    "l1_loss": lambda a, b, p: F.l1_loss(a, b),
    "bce": lambda a, b, p: F.binary_cross_entropy_with_logits(a, torch.ones(4, 12)),
    "cosine": lambda a, b, p: F.cosine_similarity(a, b),
    "cross_entropy": lambda a, b, p: F.cross_entropy(a, torch.arange(4)),
    "smooth labels": lambda a, b, p: F.cross_entropy(a, torch.arange(4), label_smoothing=0.1),
    "soft labels": lambda a, b, p: F.cross_entropy(a, torch.full((4, 12), 1 / 12)),
    "bmm": lambda a, b, p: torch.bmm(a.view(4, 3, 4), b.view(4, 4, 3)),
    "outer": lambda a, b, p: torch.outer(a[0], b[0]),
    "no gradient": lambda a, b, p: a.detach().exp() * b,
}


@each("name", FUNCTIONS)
def test_an_operation_keeps_what_is_predicted(name: str) -> None:
    check_function(FUNCTIONS[name])


@rows(
    "options",
    {}, {"is_causal": True}, {"attn_mask": torch.zeros(3, 3)}, {"attn_mask": torch.eye(3) > 0},
    {"attn_mask": "learnt"}, {"dropout_p": 0.5}, {"enable_gqa": True},
)  # fmt: skip
def test_attention_in_one_call(options: dict[str, Any]) -> None:
    def attended(a: Tensor, b: Tensor, p: Tensor) -> Tensor:
        q, k = a.view(1, 4, 3, 4), b.view(1, 4, 3, 4)
        if options.get("enable_gqa"):
            k = k[:, :2]
        learnt = {"attn_mask": p[:9].view(3, 3)} if options.get("attn_mask") == "learnt" else {}
        return F.scaled_dot_product_attention(q, k, k, **{**options, **learnt})

    check_function(attended)


def attending(mask: Tensor | None, **options: Any) -> nn.Module:
    """Multi-head attention over ten tokens, in two heads."""

    def forward(m: Any, x: Tensor) -> Tensor:
        query = m.into(x)
        key = x if "kdim" in options else query
        return m.out(m.attention(query, key, key, attn_mask=mask)[0].flatten(1))

    attention = nn.MultiheadAttention(16, 2, batch_first=True, **options)
    return Computes(forward, into=nn.Linear(12, 16), attention=attention, out=nn.Linear(160, 10))


FLOAT = nn.Transformer.generate_square_subsequent_mask(10)
ATTENTION: list[Callable[[], nn.Module]] = [
    lambda: attending(FLOAT),
    lambda: attending(FLOAT < 0),
    # A mask of each head.
    lambda: attending(torch.zeros(4, 10, 10)),
    lambda: attending(FLOAT, dropout=0.1),
    lambda: attending(FLOAT, kdim=12, vdim=12),
    lambda: attending(None, add_bias_kv=True),
    lambda: lp.convert(attending(FLOAT), lp.recipe("fp8_wang2018")),
]


def recurrent(kind: type[nn.RNNBase], **options: Any) -> nn.Module:
    """A recurrent layer and a linear one on its last output."""
    layer = kind(12, 16, batch_first=True, **options)
    out = nn.Linear(16 * (1 + layer.bidirectional), 10)
    return Computes(lambda m, x: m.out(m.layer(x)[0][:, -1]), layer=layer, out=out)


RECURRENT: list[Callable[[], nn.Module]] = [
    lambda: recurrent(nn.GRU),
    lambda: recurrent(nn.LSTM),
    lambda: recurrent(nn.RNN),
    lambda: recurrent(nn.GRU, bidirectional=True),
    lambda: recurrent(nn.LSTM, num_layers=2, dropout=0.5),
    lambda: lp.convert(recurrent(nn.GRU), lp.Recipe(fprop="e6m7", dgrad="e6m7", wgrad="e6m7")),
]


@each("build", [*ATTENTION, *RECURRENT])
def test_multi_head_attention_and_recurrent_layers(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    memories(build(), F.cross_entropy, (torch.randn(2, 10, 12), torch.arange(2)), *RATIOS)


def test_a_language_model() -> None:
    model = build_model("gpt2", Task("text", (16,), 20), width=16)
    batch = (torch.randint(0, 20, (4, 16)), torch.randint(0, 20, (4, 16)))
    memories(model, lambda y, labels: F.cross_entropy(y.transpose(1, 2), labels), batch, *RATIOS)


def test_frozen_layers_and_evaluation() -> None:
    body = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Dropout()]
    model = nn.Sequential(*body, nn.Linear(8, 3))
    model[0].requires_grad_(False)
    batch = (torch.randn(4, 6), torch.arange(4) % 3)
    memories(model, F.cross_entropy, batch, *RATIOS)
    memories(model.eval(), F.cross_entropy, batch, *RATIOS)


def test_layers_of_a_recipe() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip
    lp.convert(model, lp.recipe("fp8_wang2018"))
    memories(model, F.cross_entropy, (torch.randn(2, 1, 8, 8), torch.arange(2)), *RATIOS)

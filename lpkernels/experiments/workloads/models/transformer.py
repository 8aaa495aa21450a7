"""Networks for text: a small decoder of the GPT kind, and an LSTM."""

from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Task, family

__all__ = ["GPT"]


class GPTBlock(nn.Module):
    """Pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.reshape(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder after Radford et al. 2019 ("Language models are unsupervised multitask learners"):
    learned positions, `depth` blocks of `width` and `heads`, no dropout.

    Takes (N, L) int64 numbers of tokens, L at most `context`; returns (N, L, tokens).

    Raises: ValueError: depth below 1, or a width that the heads do not divide.
    """

    def __init__(
        self, *, tokens: int = 256, width: int = 128, depth: int = 4, heads: int = 4,
        context: int = 128,
    ) -> None:  # fmt: skip
        super().__init__()
        if depth < 1 or width < 1 or width % heads:
            raise ValueError(
                f"GPT: expected depth at least 1 and a width that {heads} heads divide, got "
                f"depth={depth} and width={width}"
            )
        self.stem, self.position = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.stem(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


@family("gpt", "text", depth=2, width=64, norms=("layer",))
def _gpt(task: Task, depth: int, width: int, norm: str) -> nn.Module:
    return GPT(tokens=task.outputs, width=width, depth=depth, context=task.shape[0])


@family("lstm", "text", depth=1, width=64)
class LanguageLSTM(nn.Module):
    """An embedding, `depth` layers of LSTM, and a linear layer at each position.

    Takes (N, L) int64 numbers of tokens, returns (N, L, tokens).
    """

    def __init__(self, task: Task, depth: int, width: int, norm: str = "none") -> None:
        super().__init__()
        self.stem = nn.Embedding(task.outputs, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, task.outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.stem(tokens))[0])

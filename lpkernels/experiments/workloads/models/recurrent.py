"""Recurrent networks for text."""

from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Size, Task, family
from lpkernels.experiments.workloads.models.scaling import check_size


class LanguageLSTM(nn.Module):
    """An embedding, `depth` layers of LSTM, and a linear layer at each position.

    Takes (N, L) int64 numbers of tokens, returns (N, L, tokens).
    """

    def __init__(self, *, tokens: int, depth: int = 1, width: int = 64) -> None:
        super().__init__()
        check_size("LanguageLSTM", depth, width)
        self.stem = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.stem(tokens))[0])


@family("lstm", "text", depth=1, width=64)
def _lstm(task: Task, size: Size) -> nn.Module:
    return LanguageLSTM(tokens=task.outputs, depth=size.depth, width=size.width)

"""One step of training: gradients of its batch, its update, and the sums of an epoch."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor, nn

from lpkernels.experiments.processes.replicas import local
from lpkernels.experiments.processes.torchrun import Processes
from lpkernels.experiments.training.callback import Context
from lpkernels.experiments.workloads.workload import Batch
from lpkernels.nn.scaling import KeptScales, update_scales


class Tally:
    """Named float64 sums over an epoch, to which tensors on the device are added without waiting
    for them.

    In float64 a sum of float32 values hardly depends on its order, nor on how a batch is shared.
    """

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self._sums: dict[str, Tensor] = {
            name: torch.tensor(value, dtype=torch.float64) for name, value in (values or {}).items()
        }

    def add(self, name: str, value: Tensor) -> None:
        """Adds a 0-d tensor, of any dtype."""
        value = value.detach().double()
        total = self._sums.get(name, torch.zeros_like(value))
        self._sums[name] = total.to(value.device) + value

    def totals(self, processes: Processes) -> dict[str, float]:
        """All: the sums over the processes, which wait here for the device and for each other."""
        own = [float(value) for value in self._sums.values()]
        return dict(zip(self._sums, processes.sums(own), strict=True))

    def here(self, name: str) -> float:
        """The sum of this process alone; waits for the device."""
        return float(self._sums.get(name, 0.0))


class Step:
    """Makes a step of a batch; the callbacks are called as `training.callback` says.

    It never waits for the device, but for one read where no callback takes the update.

    Args:
        run: whose model is trained, with the loss of its workload as its callbacks change it.
        network: the module called for the forward pass, the run's model or its wrapper.
        clip: largest norm of the gradients.
    """

    def __init__(self, run: Context, network: nn.Module, *, clip: float | None = None) -> None:
        self._run, self._network, self._clip = run, network, clip
        # Found once: following all modules takes as long as some layers.
        self._parameters = list(run.model.parameters())
        scales = [module for module in run.model.modules() if isinstance(module, KeptScales)]
        for module in scales:
            # A pass of a callback before the first update is no mistake here.
            module.is_updated = True
        self._is_scaled = bool(scales)
        self._loss = run.workload.loss
        for callback in run.callbacks:
            self._loss = callback.losses(self._loss)

    def __call__(
        self, number: int, batch: Batch, draws: AbstractContextManager[None], tally: Tally
    ) -> None:
        """Makes step `number` of the run. The batch is that of all processes; this process takes
        its own share of the batch. `draws` is the context of the layers' draws."""
        run = self._run
        share = run.processes.share(len(batch[0]))
        run.model.train()
        run.optimizer.zero_grad()
        with ExitStack() as around:
            for callback in run.callbacks:
                around.enter_context(callback.around_step(number))
            for callback in run.callbacks:
                callback.before_step(number)
            with draws:
                outcome = self._loss(self._network, tuple(t[share].to(run.device) for t in batch))
            # The share of a process in the mean over the batch: the layers send the same gradients
            # backward as in one process with the whole batch.
            loss = outcome.losses.sum() / len(batch[0])
            for callback in run.callbacks:
                loss = callback.scale_loss(loss)
            loss.backward()
            if self._is_scaled:
                update_scales(run.model)
            ran = self._update()
        tally.add("loss", outcome.losses.detach().double().sum())
        for name, value in outcome.sums.items():
            tally.add(name, value)
        # All skip together: one counts.
        tally.add("skipped", ~ran if run.processes.first else torch.zeros_like(ran))

    def _update(self) -> Tensor:
        """Changes the weights, unless a gradient is not finite; a 0-d bool says whether it did."""
        run = self._run
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if run.processes.count > 1:
            # The processes' gradients were averaged, and their sum is wanted.
            torch._foreach_mul_(gradients, run.processes.count)
        for callback in reversed(run.callbacks):
            callback.after_backward()
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        steps = (callback.step(run.optimizer) for callback in run.callbacks)
        ran = next((ran for ran in steps if ran is not None), None)
        if ran is None:
            ran = run.processes.everywhere(all_finite([local(g) for g in gradients]))
            if bool(ran):
                run.optimizer.step()
        for callback in run.callbacks:
            callback.after_step(ran)
        return ran


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """A 0-d bool tensor: no element of any of `tensors` is infinite or NaN. True for none."""
    if not tensors:
        return torch.tensor(True)
    return torch.stack([torch.isfinite(t).all() for t in tensors]).all()

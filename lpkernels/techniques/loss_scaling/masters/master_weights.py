"""Masters of the weights: an optimizer that steps on them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from lpkernels.functional.seeds import seed_for
from lpkernels.techniques.loss_scaling.masters.codec import (
    COUNTS,
    KEYS,
    FormatLike,
    StateLike,
    WeightFormats,
    plain,
)
from lpkernels.techniques.loss_scaling.masters.fused import has_no_states, split, step_fused
from lpkernels.techniques.loss_scaling.masters.master import (
    Master,
    check_optimizer,
    guard,
    step_masters,
)

# Attributes that a copy of the wrapper has beside those that torch copies of any optimizer.
_OWN = "optimizer _formats _masters _fused _seed _step _lent".split()
# The key of a state_dict for all that an optimizer's own state_dict has no place for.
_SAVED = "master_weights"


class Stagnation(NamedTuple):
    """How many updates of a parameter's elements were asked for, and how many of these changed
    nothing."""

    asked: int
    unchanged: int

    @property
    def share(self) -> float:
        """The part of the updates asked for that changed nothing; 0 if none was asked for."""
        return self.unchanged / self.asked if self.asked else 0.0


class MasterWeights(Optimizer):
    """An optimizer that steps on masters of the weights; the model holds working copies of them.

    In a step a parameter's gradient is unscaled and rounded to `grad`, the optimizer steps on the
    master in float32, the result is rounded to `master` and the optimizer's states to `state`, and
    the parameter becomes the master rounded to `weight`. Masters and states are kept as codes of
    their formats. With weight, master and state fp32, and fused=False, the bits are those of the
    optimizer alone. Where weight and master are one float or fixed format the parameter is the
    master.

    A group of the optimizer may have the keys weight, master, state and grad, whose values come
    before the arguments; they are read when the group is wrapped.

    Args:
        optimizer: a torch.optim.Optimizer. It belongs to the wrapper from now on; its states are
            taken over. LBFGS and SparseAdam are refused, as are states of no parameter.
        weight: of the working copies. Parameters keep their dtype, which must hold its values.
        master: of the masters; its rounding rounds the updates: "e6m9:stochastic" is the 16-bit
            master of Wang et al.
        state: of the optimizer's states, or {state's name: format}, where others are fp32. Numbers
            such as step counts are not rounded; states of another shape than their parameter's are
            rounded but not packed. A second moment that would stay 0 while gradients are small
            warns. A format without zero, "block128_linear4_sfp32", is for states that are never
            negative, given by name.
        grad: of the gradients as they enter; None leaves them.
        fused: one pass over each parameter, of SGD, Adam and AdamW, with float formats whose codes
            have 8, 16 or 32 bits. None: wherever it can be; True: always, or an error; False:
            never. The steps and draws are the same, but for last places.
        generator: where the seed of all draws is taken from, one int64: as in `lpkernels.quantize`.

    A draw is a function of (seed, step, parameter's number, purpose, row-major index in the whole
    tensor): any number of processes (DDP or FSDP2) and a resumed run give the same weights from the
    same gradients. If anything is stochastic, all processes call the constructor.

    A loss scaler may set found_inf and grad_scale, as torch.amp.GradScaler does.

    Raises:
        TypeError, ValueError, NotImplementedError: see the arguments; blocks of a master or state
            that lie in two shards.

    Reference: Micikevicius et al. 2017, arXiv 1710.03740: a float32 master. Wang et al. 2018, arXiv
        1812.08011: a 16-bit master, rounded stochastically. Differs: Wang et al. add in 16 bits
        within an update too.

    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> masters = lp.techniques.loss_scaling.MasterWeights(torch.optim.SGD([w], 1.0), weight="bf16")
    >>> w.grad = torch.full((2,), 1e-3)
    >>> for _ in range(3): masters.step()
    >>> w.data
    tensor([0.9961, 0.9961])
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        weight: FormatLike,
        master: FormatLike = "fp32",
        state: StateLike = "fp32",
        grad: FormatLike | None = None,
        fused: bool | None = None,
        generator: torch.Generator | Tensor | None = None,
    ) -> None:
        check_optimizer(optimizer)
        if fused not in (None, True, False):
            raise TypeError(f"MasterWeights: fused must be True, False or None, got {fused!r}")
        formats = dict(zip(KEYS, (weight, master, state, grad), strict=True))
        # The arguments are checked even where every group has formats of its own.
        WeightFormats.of(formats)
        self._formats = {key: plain(value) for key, value in formats.items()}
        self._fused, self._masters = fused, dict[Tensor, Master]()
        masters = self._masters_of(optimizer, optimizer.param_groups)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer = optimizer
        seed = seed_for(True, generator)
        assert seed is not None
        self._seed = seed.to(masters[0].parameter.device, copy=True)
        self._step = torch.zeros_like(self._seed)
        self._lent = False
        self._adopt(masters)
        guard(optimizer)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        closure: computes the loss and the gradients again, once, before the update; its result is
            returned.
        Raises:
            RuntimeError: within `masters()`; a parameter has changed its dtype or device.
            TypeError: a sparse gradient.
            ValueError: a master or state that is not finite, in a format without such codes; a
                format for a state that the optimizer does not have.
            NotImplementedError: the optimizer keeps states of no parameter.
            After an error weights, masters and states are as before.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_if_lent("step")
        kind, fused, general = type(self.optimizer), list[tuple[Any, Master]](), list[Master]()
        for group in self.param_groups:
            masters = [self._masters[p] for p in group["params"] if p.grad is not None]
            for master in masters:
                master.check_step()
            passed, others = split(kind, group, masters, self._fused)
            fused += [(group, master) for master in passed]
            general += others
        skips, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        number = self._step + 1
        if skips is not None:
            skips = torch.as_tensor(skips, device=self._step.device).reshape(()) != 0
            # A skipped step leaves no states behind.
            waits = general or not fused or any(has_no_states(kind, *update) for update in fused)
            if waits and bool(skips):
                return loss
        # Without any gradient, an optimizer that counts its steps in its groups goes on to count.
        if general or not fused:
            step_masters(self.optimizer, general, self._seed, number, scale)
        step_fused(kind, fused, self._seed, number, skips, scale)
        self._step.copy_(number if skips is None else number - skips.to(number))
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Wraps more parameters, in formats that are keys of the group, else the constructor's.

        Raises: as the constructor; nothing is changed then.
        """
        if not hasattr(self, "optimizer"):
            # This runs torch's constructor, with the groups of the optimizer that is wrapped.
            super().add_param_group(param_group)
            return
        self._refuse_if_lent("add_param_group")
        optimizer = self.optimizer
        optimizer.add_param_group(param_group)
        group = optimizer.param_groups[-1]
        try:
            masters = self._masters_of(optimizer, [group])
        except (TypeError, ValueError):
            del optimizer.param_groups[-1]
            for parameter in group["params"]:
                optimizer.state.pop(parameter, None)
            raise
        self.param_groups.append(group)
        self._adopt(masters)

    def state_dict(self) -> dict[str, Any]:
        """Masters, states, counts, options, seed and step, of whole tensors; all processes call it.

        A tensor that is whole here is the one that is kept: copy it if it must not change. The
        working copies are in the model's state_dict: save it too.
        """
        state = {master.number: master.save() for master in self._masters.values()}
        own = {"seed": int(self._seed), "step": int(self._step)}
        return {**super().state_dict(), "state": state, _SAVED: own}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`, with any number of processes; all of them call it.

        Load the model's state_dict as well, before or after.
        Raises: ValueError: the state is not of a MasterWeights of such parameters, shapes and
            formats; nothing is changed then.
        """
        self._refuse_if_lent("load_state_dict")
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, dict(state_dict))
            state_dict = state_dict if changed is None else changed
        self._check_groups(state_dict)
        groups = list(zip(self.param_groups, state_dict["param_groups"], strict=True))
        states: dict[Master, dict[str, Any]] = {}
        for group, other in groups:
            on_device = bool(other.get("capturable") or other.get("fused"))
            for master in map(self._masters.__getitem__, group["params"]):
                saved = state_dict["state"].get(master.number, {})
                states[master] = master.loaded(saved, on_device)
        for group, other in groups:
            group.update({k: copy.deepcopy(v) for k, v in other.items() if k != "params"})
        for master, state in states.items():
            master.state.clear()
            master.state.update(state)
        self._seed, self._step = (
            torch.tensor(state_dict[_SAVED][key], dtype=torch.int64, device=self._seed.device)
            for key in ("seed", "step")
        )
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _check_groups(self, state: Mapping[str, Any]) -> None:
        if _SAVED not in state:
            raise ValueError(
                f"load_state_dict: expected that of a MasterWeights, got one without {_SAVED!r}; "
                "load that of a bare optimizer into the optimizer before it is wrapped"
            )
        own, others = self.param_groups, state["param_groups"]
        sizes, saved = ([len(group["params"]) for group in groups] for groups in (own, others))
        if sizes != saved:
            raise ValueError(
                f"load_state_dict: this optimizer has groups of {sizes} parameters, the state_dict "
                f"of {saved}; wrap the parameters that it was made with"
            )
        for number, (group, other) in enumerate(zip(own, others, strict=True)):
            if WeightFormats.of(group) != WeightFormats.of(other):
                ours, theirs = ({key: x.get(key) for key in KEYS} for x in (group, other))
                raise ValueError(
                    f"load_state_dict: group {number} has the formats {ours}, in the state_dict "
                    f"{theirs}; make the MasterWeights with the formats that were saved"
                )

    @contextmanager
    def masters(self) -> Iterator[None]:
        """Inside the block the parameters hold their masters, for a test or to save the model.

        Parameters of other dtypes become float32 tensors meanwhile. Their own values come back at
        the end, whatever the block did to them.
        Raises: RuntimeError: within such a block. NotImplementedError: sharded parameters that are
            not float32.
        """
        self._refuse_if_lent("masters")
        for master in self._masters.values():
            if master.layout.mesh is not None and master.parameter.dtype != torch.float32:
                raise NotImplementedError(
                    f"masters: parameter {master.name!r} is sharded and {master.parameter.dtype}, "
                    "whose memory cannot hold a master; shard it in float32"
                )
        working_copies = [(master, master.lend()) for master in self._masters.values()]
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            for master, working in working_copies:
                master.take_back(working)

    @torch.no_grad()
    def take_weights(self) -> None:
        """Makes the masters anew from the parameters, after weights were loaded; states stay."""
        self._refuse_if_lent("take_weights")
        for master in self._masters.values():
            master.begin({}, master.seed(self._seed, self._step))

    def stagnation(self) -> dict[str, Stagnation]:
        """By parameter: the updates since the start or `reset_stagnation` that changed nothing.

        An update of an element is asked for if its gradient is not 0 or the optimizer's step in
        float32 moves it. It changes nothing if the rounded master is as before.
        """
        masters = self._masters.values()
        return {master.name: Stagnation(*master.state[COUNTS].tolist()) for master in masters}

    def reset_stagnation(self) -> None:
        """Counts from 0 again."""
        for master in self._masters.values():
            master.state[COUNTS].zero_()

    def __getstate__(self) -> dict[str, Any]:
        """The attributes of a copy; torch leaves out all but groups and states."""
        return {**super().__getstate__(), **{name: getattr(self, name) for name in _OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        guard(self.optimizer)

    def _masters_of(self, optimizer: Optimizer, groups: list[dict[str, Any]]) -> list[Master]:
        """Masters without a state, of groups that are checked, and get their formats as keys. A
        parameter has the name that the optimizer was made with, else its number."""
        masters: list[Master] = []
        by_group = [WeightFormats.of(self._formats | group) for group in groups]
        for group, formats in zip(groups, by_group, strict=True):
            first = len(self._masters) + len(masters)
            names = group.get("param_names") or map(str, itertools.count(first))
            for number, (p, name) in enumerate(zip(group["params"], names, strict=False), first):
                formats.check_parameter(p, f"MasterWeights: parameter {name!r}")
                masters.append(Master(p, name, number, formats))
            split(type(optimizer), group, masters[first - len(self._masters) :], self._fused)
        for group, formats in zip(groups, by_group, strict=True):
            formats.warn(group)
            group.update({key: plain(group.get(key, self._formats[key])) for key in KEYS})
        return masters

    @torch.no_grad()
    def _adopt(self, masters: list[Master]) -> None:
        """Makes the masters and takes over the optimizer's states."""
        drew, draws = (any(x.formats.draws for x in of) for of in (self._masters.values(), masters))
        if draws and not drew and dist.is_available() and dist.is_initialized():
            # All processes draw from the first one's seed.
            self._seed = self._seed.clone()
            dist.broadcast(self._seed, 0)
        for master in masters:
            self._masters[master.parameter], self.state[master.parameter] = master, master.state
            states = self.optimizer.state.pop(master.parameter, {})
            master.begin(states, master.seed(self._seed, self._step))

    def _refuse_if_lent(self, what: str) -> None:
        if self._lent:
            raise RuntimeError(
                f"{what}: the parameters hold their masters within masters(); leave the block first"
            )

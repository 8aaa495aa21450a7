"""Masters of the weights, and an optimizer that steps on them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from lpkernels.functional.seeds import derived_seed, seed_for
from lpkernels.techniques.loss_scaling.masters.checks import (
    check_optimizer,
    check_states,
    check_unchanged,
    refuse_step,
)
from lpkernels.techniques.loss_scaling.masters.codec import (
    COMPENSATION,
    COUNTS,
    MASTER,
    Layout,
    code_bits,
    here,
    is_codes,
    kept_format,
    shared,
    whole,
)
from lpkernels.techniques.loss_scaling.masters.formats import (
    KEYS,
    FormatLike,
    Rule,
    StateLike,
    WeightFormats,
    plain,
    rules_of,
)
from lpkernels.techniques.loss_scaling.masters.fused import Batches
from lpkernels.techniques.loss_scaling.masters.general import (
    GroupSteps,
    Update,
    begin,
    master_values,
)

# Attributes that a copy of the wrapper has beside those that torch copies of any optimizer.
_OWN = "optimizer _formats _rules _fused _seed _step _begun _lent _ready".split()
# The key of a state_dict for all that an optimizer's own state_dict has no place for.
_SAVED = "master_weights"


class Stagnation(NamedTuple):
    """Updates of a parameter's elements.

    asked: how many were asked for.
    unchanged: how many of these changed nothing.
    """

    asked: int
    unchanged: int

    @property
    def share(self) -> float:
        """The part of the updates asked for that changed nothing; 0 if none was asked for."""
        return self.unchanged / self.asked if self.asked else 0.0


class MasterWeights(Optimizer):
    """An optimizer that steps on masters of the weights; the model holds working copies of them.

    In a parameter's step its gradient is unscaled and rounded to `grad`, the optimizer steps on
    the master in float32, the result is rounded to `master` and the optimizer's states to `state`,
    and the parameter becomes the master rounded to `weight`. Masters and states are kept as codes
    of their formats; one parameter at a time is unpacked, or none (`fused`).

    With weight, master and state fp32, and fused=False, the bits are those of the optimizer alone.
    Where weight and master are one float or fixed format the parameter is the master, and nothing
    else is kept.

    A group of the optimizer may have the keys weight, master, state, grad and compensation, whose
    values come before the arguments; other groups get the arguments as keys, as plain values.
    They are read when the group is wrapped.

    Args:
        optimizer: a torch.optim.Optimizer, or any that updates a parameter from this parameter, its
            gradient, states and group alone. It belongs to the wrapper from now on; its states are
            taken over. A step may change its groups, if alike for every parameter. LBFGS and
            SparseAdam are refused.
        weight: of the working copies. Parameters keep their dtype, which must hold its values.
        master: of the masters; its rounding rounds the updates: "e6m9:stochastic" is the 16-bit
            master of Wang et al.
        state: of the optimizer's states, or {state's name: format}, where others are fp32. Numbers
            such as step counts, and states of another shape than their parameter's, are rounded
            but not packed. A second moment without a scale stays 0 while gradients are small: in
            fp16 below 5.5e-3 with beta2 = 0.999; such a request warns. A format without zero,
            "block128_linear4_sfp32", is for states that are never negative, given by name.
        grad: of the gradients as they enter; None leaves them.
        compensation: keeps the part of an update that rounding the master loses, in this format,
            and adds it to the next update (Kahan).
        fused: one pass over each parameter (docs/master-weights.md), of SGD, Adam and AdamW, with
            float formats whose codes have 8, 16 or 32 bits. None: wherever it can be; True: always,
            or an error; False: never. The steps and draws are the same, but for last places.
        generator: where the seed of all draws is taken from, one int64: as in `lpkernels.quantize`.

    A draw is a function of (seed, step, parameter's number, purpose, row-major index in the whole
    tensor). If anything is stochastic, all processes call the constructor and get the first one's
    seed, which state_dict keeps: any number of processes (DDP or FSDP2) and a resumed run give the
    same weights from the same gradients.

    A loss scaler may set found_inf and grad_scale, as torch.amp.GradScaler does: gradients are
    divided by grad_scale, and where found_inf is not 0 nothing is changed. The host reads the flag
    once a step if a parameter is not stepped in one pass, else in the step after states began.

    Raises:
        TypeError, ValueError, NotImplementedError: see the arguments; a state that the
            optimizer does not have, blocks of a master or state that lie in two shards.

    Reference: Micikevicius et al. 2017, arXiv 1710.03740: a float32 master. Wang et al. 2018, arXiv
        1812.08011: a 16-bit master, rounded stochastically. Differs: Wang et al. add in 16 bits
        within an update too, here a step is float32 and its results are rounded.

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
        compensation: FormatLike | None = None,
        fused: bool | None = None,
        generator: torch.Generator | Tensor | None = None,
    ) -> None:
        if isinstance(optimizer, MasterWeights):
            raise ValueError(
                "MasterWeights: optimizer is a MasterWeights already; wrap a bare optimizer"
            )
        check_optimizer(optimizer)
        formats = dict(zip(KEYS, (weight, master, state, grad, compensation), strict=True))
        # The arguments are checked even where every group has formats of its own.
        WeightFormats.of(formats)
        self._formats = {key: plain(value) for key, value in formats.items()}
        self._ready, self._fused, self._rules = False, fused, dict[Tensor, Rule]()
        rules = self._rules_of(optimizer, optimizer.param_groups)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer = optimizer
        seed = seed_for(True, generator)
        assert seed is not None
        self._seed = seed.to(next(iter(rules)).device, copy=True)
        self._step = torch.zeros_like(self._seed)
        # Parameters whose states were begun in the last step, each with a flag that says whether
        # that step did not run.
        self._begun: list[tuple[Tensor, Tensor, list[str]]] = []
        self._lent = False
        self._adopt(rules)
        self._ready = True
        self._guard()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        Args:
            closure: computes the loss and the gradients again, once, before the update.
        Returns: the closure's result.
        Raises:
            RuntimeError: within `masters()`; a parameter has changed its dtype, device or shape.
            TypeError: a sparse gradient.
            ValueError: a master or state that is not finite, in a format without such codes. The
                parameters before it are updated then.
            NotImplementedError: the optimizer changes a group in another way for each parameter.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_own("step")
        self._settle()
        updates = [
            (group, p, self._rules[p], self.state[p])
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        for _, parameter, rule, kept in updates:
            check_unchanged(parameter, rule, kept[COUNTS])
        found, scale = self._flag(), getattr(self, "grad_scale", None)
        number, skips = self._step + 1, None
        batches, general = Batches(self.optimizer, self._fused), GroupSteps(self.optimizer)
        for group, parameter, rule, kept in updates:
            if batches.takes(group, parameter, rule):
                names = batches.add(group, parameter, rule, kept)
                if names and found is not None:
                    self._begun.append((found, parameter, names))
                continue
            if skips is None:
                skips = found is not None and bool(found)
            if not skips:
                seed = self._seed_of(parameter, number)
                factor = scale.to(parameter.device) if isinstance(scale, Tensor) else scale
                Update(parameter, rule, kept, seed, factor).run(general, group)
        batches.run(self._seed, number, found, scale)
        if not skips:
            general.finish()
        self._step.copy_(number if found is None else number - found.to(number))
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Wraps more parameters, in formats that are keys of the group, else the constructor's.

        Raises: as the constructor; nothing is changed then.
        """
        if not self._ready:
            # This runs torch's constructor, with the groups of the optimizer that is wrapped.
            super().add_param_group(param_group)
            return
        self._check_own("add_param_group")
        optimizer = self.optimizer
        optimizer.add_param_group(param_group)
        group = optimizer.param_groups[-1]
        try:
            rules = self._rules_of(optimizer, [group])
        except (TypeError, ValueError):
            del optimizer.param_groups[-1]
            for parameter in group["params"]:
                optimizer.state.pop(parameter, None)
            raise
        self.param_groups.append(group)
        self._adopt(rules)

    def state_dict(self) -> dict[str, Any]:
        """Masters, states, counts, options, seed and step, of whole tensors; all processes call it.

        It holds plain values and tensors. A tensor that is whole here is the one that is kept: copy
        it if it must not change. The weights themselves are the model's: save its state_dict too.
        """
        self._settle()
        state = {
            rule.number: {
                name: Layout.of(p).saved(value, kept_format(name, value, rule.formats))
                for name, value in self.state[p].items()
            }
            for p, rule in self._rules.items()
        }
        own = {"seed": int(self._seed), "step": int(self._step)}
        return {**super().state_dict(), "state": state, _SAVED: own}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was made, with any number of processes; all of them call it.

        Load the model's state_dict as well, before or after.
        Raises: ValueError: the state is not of a MasterWeights of such parameters, shapes and
            formats; nothing is changed then.
        """
        self._check_own("load_state_dict")
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, dict(state_dict))
            state_dict = state_dict if changed is None else changed
        self._check_groups(state_dict)
        saved: dict[Tensor, dict[str, Any]] = {}
        for parameter, rule in self._rules.items():
            # Some loaders place what has a parameter's shape as the parameter is placed.
            saved[parameter] = {
                name: whole(value) if isinstance(value, Tensor) else copy.deepcopy(value)
                for name, value in state_dict["state"].get(rule.number, {}).items()
            }
            _check_tensors(parameter, rule, saved[parameter])
        for group, other in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({k: copy.deepcopy(v) for k, v in other.items() if k != "params"})
            for parameter in group["params"]:
                self.state[parameter] = {
                    name: self._loaded(name, value, parameter, group)
                    for name, value in saved[parameter].items()
                }
        self._seed, self._step = (
            torch.tensor(state_dict[_SAVED][key], dtype=torch.int64, device=self._seed.device)
            for key in ("seed", "step")
        )
        self._begun = []
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

    def _loaded(self, name: str, value: Any, parameter: Tensor, group: Mapping[str, Any]) -> Any:
        """The part that this process keeps of a saved value, on the device where it is kept."""
        if not isinstance(value, Tensor):
            return value
        fmt = kept_format(name, value, self._rules[parameter].formats)
        if fmt is None and name != COUNTS and not value.dim():
            # A count of steps, which torch keeps on the host unless asked otherwise.
            on_device = group.get("capturable") or group.get("fused")
            return value.to(parameter.device, copy=True) if on_device else value.clone()
        return Layout.of(parameter).loaded(value.to(parameter.device, copy=True), fmt)

    @contextmanager
    def masters(self) -> Iterator[None]:
        """Inside the block the parameters hold their masters, for a test or to save the model.

        Parameters of other dtypes than float32 become float32 tensors meanwhile. Their own values
        come back at the end, whatever the block did to them. A copy of all working copies is kept.
        Raises: RuntimeError: within such a block. NotImplementedError: sharded parameters that are
            not float32.
        """
        self._check_own("masters")
        for parameter, rule in self._rules.items():
            if Layout.of(parameter).mesh is not None and parameter.dtype != torch.float32:
                raise NotImplementedError(
                    f"masters: parameter {rule.name!r} is sharded and {parameter.dtype}, whose "
                    "memory cannot hold a master; shard it in float32"
                )
        working_copies = {p: self._lend(p, rule) for p, rule in self._rules.items()}
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            for parameter, working in working_copies.items():
                if parameter.dtype == working.dtype:
                    here(parameter).copy_(working)
                else:
                    parameter.data = working

    @torch.no_grad()
    def take_weights(self) -> None:
        """Makes the masters anew from the parameters as they are; for use after loading weights.
        States and counts stay; the draws are those of the present step.
        """
        self._check_own("take_weights")
        for parameter, rule in self._rules.items():
            kept = begin(parameter, rule, {}, self._seed_of(parameter, self._step))
            self.state[parameter].update({**kept, COUNTS: self.state[parameter][COUNTS]})

    def stagnation(self) -> dict[str, Stagnation]:
        """By parameter: the updates since the start or `reset_stagnation` that changed nothing.

        An update of an element is asked for if its gradient is not 0 or the optimizer's step in
        float32 moves it. It changes nothing if the master, and its compensation, are as before: it
        was lost when the master was rounded, in float32 itself, or by a learning rate of 0. Reads
        the counts from the device.
        """
        return {
            rule.name: Stagnation(*(int(count) for count in self.state[p][COUNTS].tolist()))
            for p, rule in self._rules.items()
        }

    def reset_stagnation(self) -> None:
        """Counts from 0 again."""
        for p in self._rules:
            self.state[p][COUNTS].zero_()

    def rules(self) -> dict[Tensor, Rule]:
        """By parameter: its name, number and formats."""
        return dict(self._rules)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes of a copy; torch leaves out all but groups and states."""
        return {**super().__getstate__(), **{name: getattr(self, name) for name in _OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._guard()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self._formats.items() if value)
        return f"MasterWeights({shown})\n{super().__repr__()}"

    def _guard(self) -> None:
        """Makes the optimizer's own step an error from now on."""
        setattr(self.optimizer, "step", MethodType(refuse_step, self.optimizer))  # noqa: B010

    def _rules_of(self, optimizer: Optimizer, groups: list[dict[str, Any]]) -> dict[Tensor, Rule]:
        """The rules of groups that are checked, and get their formats as keys."""
        rules: dict[Tensor, Rule] = {}
        formats = []
        for group in groups:
            own = rules_of(group, self._formats, len(self._rules) + len(rules))
            formats += [(group, rule.formats) for rule in list(own.values())[:1]]
            rules.update(own)
        check_states(optimizer, formats)
        batches = Batches(optimizer, self._fused)
        for group in groups:
            for parameter in group["params"]:
                batches.takes(group, parameter, rules[parameter])
        for group in groups:
            group.update({key: plain(group.get(key, self._formats[key])) for key in KEYS})
        return rules

    @torch.no_grad()
    def _adopt(self, rules: Mapping[Tensor, Rule]) -> None:
        """Makes the masters of parameters and takes over the optimizer's states."""
        drew, draws = (
            any(rule.formats.draws for rule in of.values()) for of in (self._rules, rules)
        )
        if draws and not drew:
            self._seed = shared(self._seed)
        self._rules.update(rules)
        for parameter, rule in rules.items():
            states = self.optimizer.state.pop(parameter, {})
            seed = self._seed_of(parameter, self._step)
            self.state[parameter] = begin(parameter, rule, states, seed)

    def _seed_of(self, parameter: Tensor, step: Tensor) -> Tensor | None:
        """The seed of a parameter in a step, derived from seed, step and number in this order."""
        rule = self._rules[parameter]
        if not rule.formats.draws:
            return None
        seed = derived_seed(derived_seed(self._seed, step + 1), rule.number + 1)
        return seed.to(parameter.device)

    def _flag(self) -> Tensor | None:
        """A 0-d bool that is true if nothing must change. None: the step runs."""
        found = getattr(self, "found_inf", None)
        if found is None:
            return None
        return torch.as_tensor(found, device=self._step.device).reshape(()) != 0

    def _settle(self) -> None:
        """Forgets the states that were begun in a step which did not run."""
        begun, self._begun = self._begun, []
        # All have the flag of one step.
        if begun and bool(begun[0][0]):
            for _, parameter, names in begun:
                for name in names:
                    del self.state[parameter][name]

    def _lend(self, parameter: Tensor, rule: Rule) -> Tensor:
        """Puts the master into the parameter; returns the parameter's old tensor."""
        master = Layout.of(parameter).part(master_values(parameter, rule, self.state[parameter]))
        if parameter.dtype == torch.float32:
            working = here(parameter).clone()
            here(parameter).copy_(master)
            return working
        working = parameter.data
        parameter.data = master.clone()
        return working

    def _check_own(self, what: str) -> None:
        if self._lent:
            raise RuntimeError(
                f"{what}: the parameters hold their masters within masters(); leave the block first"
            )


def _check_tensors(parameter: Tensor, rule: Rule, values: Mapping[str, Any]) -> None:
    """Raises: ValueError: what was saved of a parameter lacks its counts, or has another shape."""
    if COUNTS not in values:
        raise ValueError(f"load_state_dict: the state_dict lacks what it kept of {rule.name!r}")
    for name, value in values.items():
        fmt = kept_format(name, value, rule.formats)
        shape = parameter.shape if name in (MASTER, COMPENSATION) else None
        if fmt is not None and is_codes(value, fmt):
            shape = torch.Size([(code_bits(fmt, parameter.shape) + 7) // 8])
        if shape is not None and value.shape != shape:
            raise ValueError(
                f"load_state_dict: {name} of parameter {rule.name!r} must have shape "
                f"{tuple(shape)} in {fmt}, got {tuple(value.shape)}; load it into the model it was "
                "made with"
            )

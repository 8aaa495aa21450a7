"""A precision assignment: the text that asks for it, two formats for all tensors, and the callbacks
that train under it."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Annotated, Any, NamedTuple, get_args

from pydantic import Field
from torch import Tensor, nn

from lpkernels import schemas
from lpkernels.arithmetic import as_quantizer
from lpkernels.arithmetic.text import Option, number, options_of, read_options, whole
from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.experiments.workloads.workload import Batch, Loss, Outcome, OutputLoss
from lpkernels.techniques import checks
from lpkernels.techniques.assignment import (
    Assignment,
    Formats,
    Op,
    assign,
    demote,
    group,
    trace,
)
from lpkernels.techniques.assignment.rules import BASELINES, check_demand
from lpkernels.techniques.assignment.running import FanOut
from lpkernels.techniques.pareto import TrainingRecipe

#: From the operations of a model and its loss to their assignment.
Rule = Callable[[Sequence[Op]], Assignment]


class Request(NamedTuple):
    """The rule of a text, and the options of `assign` that it has."""

    rule: Rule
    options: dict[str, Any]


def parse_assignment(text: str) -> Request:
    """Which assignment a network is to have, before the network is there.

    The text has words with commas between: the arguments of `demote` (ratio or bits, order, seed),
    the name of a baseline, or file=<path> of a saved assignment; then promote and fan_out of
    `assign`, and low=<format> for weights and activations, low_grad=<format> for gradients of
    activations, in place of the paper's, rounded to nearest, ties away, unless the text says
    otherwise.

    "ratio=0.6,order=decreasing,promote=0.01", "bits=100000,order=increasing",
    "ratio=0.5,order=random,seed=3", "uniform,promote=none", "operator_based,promote=none",
    "file=assignment.json", "ratio=1,low=e3m2none_sat,low_grad=e4m1none".

    Raises: ValueError: a word that means nothing, or twice, words that do not go together, a value
        out of range, a format that does not exist.
    """
    # Spaces around commas and equals signs mean nothing.
    words = re.sub(r"\s*([=,])\s*", r"\1", text.strip()).split(",")
    values = read_options(text, words, _OPTIONS)
    options: dict[str, Any] = {
        name: values.pop(name) for name in ("promote", "fan_out") if name in values
    }
    if options.get("promote") is not None:
        checks.number("assignment: promote", options["promote"], least=0, most=1)
    checks.choice("assignment: fan_out", options.get("fan_out", "sum"), get_args(FanOut))
    formats = _formats(values.pop("low", ""), values.pop("low_grad", ""))
    kind, path = values.pop("kind", ""), values.pop("file", "")
    if not (kind or path):
        demand = {"ratio": None, "bits": None, "order": "decreasing", "seed": None, **values}
        check_demand("assignment", **demand)
        return Request(lambda ops: demote(group(ops), **demand, formats=formats), options)
    if values or (kind and path):
        raise ValueError(
            f"assignment: {kind or 'file'} takes no ratio, bits, order or seed, and no other rule; "
            "leave them out"
        )
    if path:
        return Request(lambda ops: Assignment.load(path, group(ops)), options)
    return Request(partial(BASELINES[kind], formats=formats), options)


def _formats(low: str, low_grad: str) -> Formats:
    """The paper's formats, with these in place of the low ones; "" leaves them."""
    paper, pairs = Formats(), {}
    for kind, text in {"weight": low, "activation": low, "grad_activation": low_grad}.items():
        if text:
            rounded = text if ":" in text else f"{text}:nearest_away"
            pairs[kind] = getattr(paper, kind).high, rounded
    return Formats(**pairs)


_OPTIONS = {
    # A baseline or a file stands for its rule.
    "kind": Option("rule", "", alone=BASELINES.__contains__, shown=", ".join(BASELINES)),
    **options_of(
        demote,
        ratio={"read": number},
        bits={"read": whole},
        seed={"read": whole},
        formats=None,
        pins=None,
    ),
    **options_of(
        assign,
        promote={"read": lambda text: None if text == "none" else number(text)},
        pack=None,
    ),
    **{name: Option(name, "") for name in ("file", "low", "low_grad")},
}


@register("assignment", order=30)
class AssignmentConfig(CallbackConfig):
    """The settings of training under a precision assignment."""

    assignment: Annotated[str, checked(parse_assignment)] = Field(
        "",
        description="Which tensors are in low precision, e.g. ratio=0.6,order=decreasing,"
        "promote=0.01, bits=1000000,order=increasing, uniform,promote=none, "
        "operator_based,promote=none or file=assignment.json; `lpkernels assign` shows one.",
    )

    def build(self) -> Callback:
        return AssignedTraining(self.assignment)


class MeanLoss:
    """The loss for `assign`: the mean over a batch is one tensor, which is rounded, and stands for
    all examples. `sums` are those of the last batch."""

    def __init__(self, losses: OutputLoss) -> None:
        self._losses = losses
        self.sums: Mapping[str, Tensor] = {}

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        outcome = self._losses(output, batch)
        self.sums = outcome.sums
        return outcome.losses.mean()


class UnderAssignment(Callback):
    """Computes the loss of every step under an assignment; tests run in the formats of the moment.

    option: the setting that asks for it, as errors name it.  options: as for `assign`.
    """

    def __init__(self, option: str, rule: Rule, **options: Any) -> None:
        self._option, self._rule, self._options = option, rule, options

    def prepare(self, context: Context) -> None:
        sample, count = context.sample, context.processes.count
        try:
            if count > 1:
                raise ValueError(f"trains in one process, got {count}; start it without torchrun")
            self._loss = MeanLoss(context.workload.output_loss(sample))
            assignment = self._rule(trace(context.model, self._loss, (sample[0], sample)))
        except (ValueError, FileNotFoundError, NotImplementedError) as error:
            raise ValueError(f"{self._option}: {error}") from error
        self.assigned = assign(context.model, self._loss, assignment, **self._options)
        # A resumed run may begin with a shorter batch than the one it is made of.
        self.assigned.check_batch(sample[0], sample)

    def losses(self, loss: Loss) -> Loss:
        def outcome(model: nn.Module, batch: Batch) -> Outcome:
            mean = self.assigned(batch[0], batch)
            return Outcome((mean * len(batch[0])).reshape(1), self._loss.sums)

        return outcome

    def after_step(self, ran: Tensor) -> None:
        self.assigned.step()

    def evaluating(self) -> AbstractContextManager[Any]:
        return self.assigned.evaluating()

    def state_dict(self) -> dict[str, Any]:
        return self.assigned.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.assigned.load_state_dict(state)


class AssignedTraining(UnderAssignment):
    """Records ratios and promotions; the last epoch has a test in float32 as well."""

    def __init__(self, text: str) -> None:
        rule, options = parse_assignment(text)
        super().__init__("assignment", rule, **options)
        self.text = text

    def further_tests(self) -> Mapping[str, AbstractContextManager[Any]]:
        return {"float32": self.assigned.evaluating(in_formats=False)}

    def record(self) -> dict[str, Any]:
        """The ratio now, the mean bit ratio of the steps so far, and the promotions so far."""
        return {
            "low_ratio": round(self.assigned.assignment.ratio, 6),
            "bit_ratio": round(self.assigned.mean_bit_ratio, 6),
            "promotions": len(self.assigned.promotions),
        }

    def files(self) -> dict[str, list[dict[str, Any]]]:
        """promotions.jsonl: which tensor was promoted, when, and at which overflow ratio."""
        header = {**schemas.header("promotions"), "assignment": self.text}
        events = [{"type": "promotion", **event._asdict()} for event in self.assigned.promotions]
        return {"promotions": [header, *events]}


@register("every_tensor", order=30)
class EveryTensorConfig(CallbackConfig):
    """The settings of two formats for all tensors (`TrainingRecipe.assignment`); layers keep the
    accumulators of the run's recipe.

    Raises: ValueError: ends without tensors.
    """

    DEPENDENT = ("tensors", "ends")

    tensors: Annotated[str, checked(as_quantizer)] = Field(
        "",
        description="Rounding of every tensor, forward and backward, except gradients of weights, "
        "which --opt-grad rounds: e4m3_sat:stochastic.",
    )
    ends: Annotated[str, checked(as_quantizer)] = Field(
        "",
        description="With --tensors: rounding of the input and of the logits with their gradient; "
        "default: that of --tensors.",
    )

    def build(self) -> Callback:
        recipe = TrainingRecipe(as_quantizer(self.tensors), as_quantizer(self.ends or self.tensors))
        return UnderAssignment("tensors", recipe.assignment, promote=None)

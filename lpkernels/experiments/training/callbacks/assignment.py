"""A precision assignment: the text that asks for it, and the callbacks that train under it."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import Field
from torch import Tensor, nn

from lpkernels import schemas
from lpkernels.arithmetic.text import number, options_of, read_options, whole, written_options
from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.experiments.workloads.workload import Batch, Loss, Outcome
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
from lpkernels.techniques.assignment.rules import BASELINES, Order, check_demand
from lpkernels.techniques.assignment.running import FanOut


@dataclass(frozen=True)
class Request:
    """Which assignment a network is to have, before the network is there.

    rule: "demote", which goes by ratio or bits; one of the baselines; or "file". ratio, bits,
    order, seed: as for `demote`, and only with that rule. file: the path of a saved assignment.
    promote: the overflow ratio that promotes; None: none does. fan_out: as for `assign`. low:
    another low precision than the paper's for weights and activations, low_grad: for gradients of
    activations; both round to nearest, ties away, unless the text says otherwise.
    Raises: ValueError: fields that do not go together, or out of range.
    """

    rule: str = "demote"
    ratio: float | None = None
    bits: int | None = None
    order: Order = "decreasing"
    seed: int | None = None
    file: str = ""
    promote: float | None = 0.01
    fan_out: FanOut = "sum"
    low: str = ""
    low_grad: str = ""

    def __post_init__(self) -> None:
        checks.choice("assignment: rule", self.rule, ("demote", *BASELINES, "file"))
        checks.choice("assignment: fan_out", self.fan_out, get_args(FanOut))
        if self.promote is not None:
            checks.number("assignment: promote", self.promote, least=0, most=1)
        if (self.rule == "file") != bool(self.file):
            raise ValueError("assignment: file=<path> stands for a rule; give the path alone")
        if self.rule == "demote":
            check_demand("assignment", self.ratio, self.bits, self.order, self.seed)
        else:
            demand = (self.ratio, self.bits, self.order, self.seed)
            if demand != (None, None, "decreasing", None):
                raise ValueError(
                    f"assignment: {self.rule} takes no ratio, bits, order or seed; leave them out"
                )
        # An impossible format is an error here, before the network is there.
        _ = self.formats

    @classmethod
    def parse(cls, text: str) -> "Request":
        """The Request of a text, which has its fields as words, with commas between.

        "ratio=0.6,order=decreasing,promote=0.01", "bits=100000,order=increasing",
        "ratio=0.5,order=random,seed=3", "uniform,promote=none", "operator_based,promote=none",
        "file=assignment.json", "ratio=1,low=e3m2none_sat,low_grad=e4m1none".

        Raises: ValueError: a word that means nothing, or twice, or words that do not go together.
        """
        # Spaces around commas and equals signs mean nothing.
        words = re.sub(r"\s*([=,])\s*", r"\1", text.strip()).split(",")
        fields = read_options(text, words, _OPTIONS)
        return cls(**({"rule": "file"} | fields if "file" in fields else fields))

    def __str__(self) -> str:
        return ",".join(written_options(self, _OPTIONS))

    @property
    def formats(self) -> Formats:
        """High and low precision."""
        pairs: dict[str, Any] = {}
        if self.low:
            pairs["weight"] = _PAPER.weight.high, _rounded(self.low)
            pairs["activation"] = _PAPER.activation.high, _rounded(self.low)
        if self.low_grad:
            pairs["grad_activation"] = _PAPER.grad_activation.high, _rounded(self.low_grad)
        return Formats(**pairs)

    def assignment(self, ops: Sequence[Op]) -> Assignment:
        """The assignment for these operations.

        Raises: as `demote` and `Assignment.load` do.
        """
        if self.rule in BASELINES:
            return BASELINES[self.rule](ops, formats=self.formats)
        groups = group(ops)
        if self.rule == "file":
            return Assignment.load(self.file, groups)
        return demote(
            groups, self.ratio, bits=self.bits, order=self.order, seed=self.seed,
            formats=self.formats,
        )  # fmt: skip


_PAPER = Formats()


def _rounded(text: str) -> str:
    return text if ":" in text else f"{text}:nearest_away"


_OPTIONS = options_of(
    Request,
    rule={
        # A file stands for its rule.
        "default": lambda request: "file" if request.file else "demote",
        "alone": BASELINES.__contains__,
        "shown": ", ".join(BASELINES),
    },
    ratio={"read": number},
    bits={"read": whole},
    seed={"read": whole},
    promote={
        "read": lambda text: None if text == "none" else number(text),
        "write": lambda value: "none" if value is None else str(value),
    },
)


@register("assignment", order=30)
class AssignmentConfig(CallbackConfig):
    """The settings of training under a precision assignment."""

    assignment: Annotated[str, checked(Request.parse)] = Field(
        "",
        description="Which tensors are in low precision, e.g. ratio=0.6,order=decreasing,"
        "promote=0.01, bits=1000000,order=increasing, uniform,promote=none, "
        "operator_based,promote=none or file=assignment.json; `lpkernels assign` shows one.",
    )

    def build(self) -> Callback:
        return AssignedTraining(Request.parse(self.assignment))


class UnderAssignment(Callback):
    """Computes the loss of every step under an assignment; tests run in the formats of the moment.

    option: the setting that asks for it, as errors name it. rule: from the operations of the model
    and its loss to their assignment. promote, fan_out: as for `assign`.
    """

    def __init__(
        self,
        option: str,
        rule: Callable[[Sequence[Op]], Assignment],
        promote: float | None = None,
        fan_out: FanOut = "sum",
    ) -> None:
        self._option, self._rule, self._promote, self._fan_out = option, rule, promote, fan_out
        self._sums: Mapping[str, Tensor] = {}

    def prepare(self, context: Context) -> None:
        count = context.processes.count
        if count > 1:
            raise ValueError(
                f"{self._option}: trains in one process, got {count}; start it without torchrun"
            )
        sample = context.sample
        try:
            self._losses = context.workload.output_loss(sample)
            assignment = self._rule(trace(context.model, self._mean, (sample[0], sample)))
        except (ValueError, FileNotFoundError, NotImplementedError) as error:
            raise ValueError(f"{self._option}: {error}") from error
        options: Any = {"promote": self._promote, "fan_out": self._fan_out}
        self.assigned = assign(context.model, self._mean, assignment, **options)
        # A resumed run may begin with a shorter batch than the one it is made of.
        self.assigned.check_batch(sample[0], sample)

    def _mean(self, output: Any, batch: Batch) -> Tensor:
        outcome = self._losses(output, batch)
        self._sums = outcome.sums
        return outcome.losses.mean()

    def losses(self, loss: Loss) -> Loss:
        def outcome(model: nn.Module, batch: Batch) -> Outcome:
            # One loss that counts for all examples, because their mean is rounded.
            mean = self.assigned(batch[0], batch)
            return Outcome((mean * len(batch[0])).reshape(1), self._sums)

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

    def __init__(self, request: Request) -> None:
        super().__init__("assignment", request.assignment, request.promote, request.fan_out)
        self.request = request

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
        header = {**schemas.header("promotions"), "assignment": str(self.request)}
        events = [{"type": "promotion", **event._asdict()} for event in self.assigned.promotions]
        return {"promotions": [header, *events]}

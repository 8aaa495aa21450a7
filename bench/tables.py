"""``python -m bench.tables --check``: the pages of docs/results follow from bench/results.

A table has a row for each group of records that agree in the fields of `rows`, in the order of the
file. ``--write`` writes all pages anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lpkernels.experiments.records import Run, table_of
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.report.tables import fixed, interval, p_text, signed

ROOT = Path(__file__).resolve().parents[1]
Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """The records of a row, and for any field the summaries of all arms. A method gives the text of
    a cell, which is empty where the records have no figure."""

    records: list[Record]
    arm: str
    reference: str
    arms: Callable[..., Mapping[str, Any]]

    def show(self, text: str, threads: int = 0) -> str:
        """A text of `str.format`, of the newest record with this number of threads, 0 for any."""
        found = [r for r in self.records if not threads or r["threads"] == threads]
        try:
            return text.format(**found[-1]) if found else ""
        except TypeError:
            return ""  # The number is null in the record.

    def every(self, text: str) -> str:
        return ", ".join(text.format(**record) for record in self.records)

    def mean(self, field: str, places: int, scale: float = 1.0) -> str:
        return fixed(self.arms(field)[self.arm]["mean"], places, scale)

    def relative(self, field: str, places: int) -> str:
        own, unit = (self.arms(field)[arm]["mean"] for arm in (self.arm, self.reference))
        return fixed(own / unit if unit else None, places)

    def figure(self, field: str, places: int, scale: float = 1.0) -> str:
        error = fixed(self.arms(field)[self.arm]["standard_error"], places, scale)
        return f"{self.mean(field, places, scale)} ± {error}" if error else ""

    def difference(self, field: str, places: int, scale: float = 1.0, other: str = "") -> str:
        """The mean difference to another arm, paired by seed, and its 95% t interval."""
        pairs = self.arms(field, other or self.reference)[self.arm]
        mean, low, high = (pairs[f"difference{end}"] for end in ("", "_low", "_high"))
        return f"{signed(mean, places, scale)} {interval(low, high, places, scale)}".strip()

    def p(self, field: str) -> str:
        """Of the paired t-test, corrected by Holm over the arms of the table."""
        return p_text(self.arms(field)[self.arm]["p_holm"])


#: By its heading, the cells of a column: a text that `Row.show` fills in, or the name of another
#: method of Row and its arguments.
Columns = Mapping[str, str | tuple[Any, ...]]


@dataclass(frozen=True)
class Table:
    """A table. record: a file of bench/results.  where: fields that its records must have.
    reference: the arm to compare with; an arm is a value of the first field of `rows`."""

    heading: str
    record: str
    columns: Columns
    rows: tuple[str, ...] = ("arm",)
    reference: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)


ACCURACY = ("test accuracy (%)", "test_accuracy", 2, 100.0)
BITS = ("bits per character", "test_bits_per_char", 4, 1.0)
BITS_3 = (*BITS[:2], 3, 1.0)
PSNR = ("test PSNR (dB)", "test_psnr", 3, 1.0)


def sweep(
    heading: str, record: str, reference: str = "fp32", of: Any = ACCURACY,
    before: Columns | None = None, after: Columns | None = None, other: str = "", **where: Any,
) -> Table:  # fmt: skip
    """The arms of a sweep: a figure, and its differences to the reference and to another arm."""
    columns = {
        **(before or {}), of[0]: ("figure", *of[1:]),
        f"difference to {reference}, 95% t interval": ("difference", *of[1:]),
        "p after Holm": ("p", of[1]), **(after or {}),
        **({f"difference to {other}": ("difference", *of[1:], other)} if other else {}),
    }  # fmt: skip
    return Table(heading, record, columns, reference=reference, where=where)


COST: Columns = {"cost": ("relative", "bitops", 3)}
LAST: Columns = {"at the last bits": ("mean", "test_accuracy_last_bits", 2, 100)}
TESTS: Columns = {**LAST, "recalibrated": ("mean", "test_accuracy_recalibrated", 2, 100)}
ASSIGNED: Columns = {"bit ratio": ("mean", "bit_ratio", 3), "promotions": ("mean", "promotions", 1)}
INTRODUCTION = """`python -m bench.tables --write` writes this page; [what it means](../{name}.md).
A figure is the mean over the seeds ± its standard error; differences are paired by seed."""
RATIO = "{baselines[torch][ratio]:.2f}"

#: The tables of each page, by the name of the page of docs that tells what follows from them.
PAGES: dict[str, list[Table]] = {
    "sweeps": [sweep("MNIST-1D under recipes", "sweep-mnist1d-recipes")],
    "formats": [
        sweep("Formats of 8 bits on MNIST-1D", "sweep-mnist1d-formats"),
        sweep("GPT, 150 steps", "sweep-gpt-scaled", of=BITS,
              after={"error of dw": ("mean", "dw_error", 3)}),
        Table("Elements clipped and zeroed, in percent", "sweep-gpt-scaled", {
            f"{what} {tensor}": ("mean", f"{what}_{tensor}", 3, 100)
            for tensor in ("input", "weight", "grad_output") for what in ("clipped", "zeroed")
        }),
    ],
    "choosing-an-accumulator": [
        sweep(heading, f"sweep-{record}", "fp32 sums", (*ACCURACY[:2], places, 100.0))
        for heading, record, places in (
            ("The default plan on digits32", "digits32-default-plan", 2),
            ("The default plan on Fashion-MNIST", "fashion-default-plan", 2),
            ("ResNet-8 on digits", "digits-accumulators", 1),
            ("A CNN on digits32", "digits32-accumulators", 1),
            ("Parts of the plan on digits32", "digits32-accumulator-parts", 1),
            ("Fashion-MNIST", "fashion-accumulators", 2),
            ("Parts of the plan on Fashion-MNIST", "fashion-accumulator-parts", 2),
        )
    ],
    "mixed-precision": [
        sweep("MNIST-1D", "sweep-mnist1d-loss-scale"),
        sweep("Denoising, 200 steps", "sweep-fashion-denoise", of=PSNR),
        sweep("Denoising, 400 steps", "sweep-fashion-denoise-400", of=PSNR,
              before={"skipped steps": ("mean", "skipped_steps", 1)}, other="fp16, doubling"),
        sweep("ResNet-8 on digits", "sweep-digits-mixed"),
        sweep("LSTM on text", "sweep-lstm-mixed", of=BITS_3),
        sweep("GPT on text", "sweep-gpt-mixed", of=BITS_3),
    ],
    "master-weights": [
        *(sweep(heading, "optimizer-states", of=(label, "figure", *places),
                before={"bytes": "{bytes_a_value:.3f}"}, task=task)
          for heading, task, (label, _, *places) in (
              ("States on MNIST-1D", "mnist1d cnn3", ACCURACY),
              ("States of a GPT", "text gpt2", BITS))),
        sweep("Masters on MNIST-1D", "sweep-mnist1d-masters"),
    ],
    "cyclic-precision": [
        *(sweep(f"Bounds: {task}", "precision-range", "static 8", ("error (%)", "error", 1, 100.0),
                after={"cost": ("relative", "cost", 2)}, task=task)
          for task in ("mixture of experts", "U-Net", "autoencoder")),
        *(sweep(heading, f"sweep-{record}-schedules", "static 8", ACCURACY, COST, TESTS, other)
          for heading, record, other in (
              ("MNIST-1D", "mnist1d", "cpt 3-8"), ("Digits with wrong labels", "digits", "cpt 2-8"),
              ("Fashion-MNIST", "fashion", "cpt 3-8"))),
        sweep("An LSTM on text", "sweep-lstm-schedules", "static 8", BITS, COST,
              {"at the last bits": ("mean", "test_bits_per_char_last_bits", 4)}, "cpt 3-8"),
        Table("Valleys", "landscape", {
            "top eigenvalue": ("mean", "eigenvalue", 1), "training loss": ("mean", "train_loss", 3),
            "difference of eigenvalues": ("difference", "eigenvalue", 1),
            "rise of loss": ("mean", "rise", 2), "difference of rises": ("difference", "rise", 2),
        }, reference="static 8"),
        sweep("Accumulators", "sweep-mnist1d-accumulator-schedules", "static 8", ACCURACY,
              {"cost": ("relative", "adder_cost", 3)}, LAST, "cpt 2-8"),
    ],
    "assignments": [
        *(sweep(heading, f"sweep-{record}", before=ASSIGNED, other=f"own format, {ratio}")
          for heading, record, ratio in (
              ("MNIST-1D", "mnist1d-assignments", "0.6"), ("Digits", "digits-assignments", "0.6"),
              ("Low loss on MNIST-1D", "mnist1d-assignments-low-loss", "uniform"),
              ("Low loss on digits", "digits-assignments-low-loss", "uniform"),
              ("Fashion-MNIST", "fashion-assignments", "uniform"))),
        Table("Cost of a step", "assignments", {
            "of plain": "{over:.2f}", "unpacked": "{unpacked:.2f}", "counting": "{counting:.1%}",
        }, rows=("sums", "ratio"), where={"batch": 64}),
    ],
    "frontier": [
        Table(heading, f"frontier-{record}", {
            name: f"{{{field}:.{places}f}} ± {{{field}_error:.{places}f}}" for name, field in (
                ("rmse of the rest", "rmse"), ("area", "hypervolume"), ("regret", "regret"))
        }, rows=("method", "count"), where={"type": "average"})
        for heading, record, places in (
            ("Ways to choose", "choices", 4), ("From one network to another", "transfer", 3))
    ],
    "tensor-cores": [
        sweep("MNIST-1D", "sweep-mnist1d-units", "fp32 sums"),
        sweep("GPT on text", "sweep-gpt-units", "fp32 sums", BITS_3),
    ],
    "backends": [
        Table("A product of 960^3 on an Intel Xeon", "intel-xeon-processor", {
            "GMAC/s": ("show", "{rate:.1f}", 1), "of torch": ("show", RATIO, 1),
            "GMAC/s, 2 threads": ("show", "{rate:.1f}", 2), "of torch, 2": ("show", RATIO, 2),
        }, rows=("case",), where={"op": "matmul", "shape": [960, 960, 960]}),
        Table("A training step of ResNet-20 on an Intel Xeon", "intel-xeon-processor", {
            "speed, of torch": ("show", RATIO, 1)}, rows=("case",), where={"op": "train_step"}),
        Table("Speed over that of loops, one thread of an AMD EPYC (Zen 4)", "general-path", {
            f"{loop} loop": f"{{over_{loop}:.0f}}" for loop in ("exact", "scalar", "naive")
        }, rows=("operands", "accumulator")),
        Table("Tensor cores", "tensor-cores", {"of torch": "{ratio:.3f}"}, ("unit",),
              where={"isa": "avx512fp16"}),
        Table("Triton's kernels, counted", "triton-sm_90", {
            "tile": "{tile[0]}x{tile[1]}", "instructions": "{instructions:.2f}",
            "half rate": "{half_rate:.2f}", "float64": "{float64:.2f}", "registers": "{registers}",
        }, rows=("kernel", "accumulator")),
        Table("Instructions a product", "instructions", {"": "{instructions_per_product:.1f}"},
              rows=("operands", "accumulator", "processor", "isa")),
        Table("An optimizer's step", "updates", {
            "bytes": "{bytes_per_element:.0f}", "ns": ("show", "{ns:.2f}", 1),
            "of copy_": ("show", "{of_copy:.2f}", 1), "2 threads": ("show", "{of_copy:.2f}", 2),
        }, rows=("optimizer", "case"), where={"type": "update"}),
        Table("A diagnosed step", "diagnosis",
              {"best": "{over:+.1%}", "median": "{over_median:+.1%}"}, ("recipe", "diagnose")),
        Table("An install on 2 cores", "install", {
            "seconds": ("every", "{seconds:.0f}"), "objects": "{objects}",
            "processor's seconds": ("every", "{processor_seconds:.0f}"),
            "compiler's seconds": ("every", "{object_seconds:.0f}"), "MB": "{module_mb:.2f}",
        }, rows=("processor", "part", "nvcc")),
        Table("Small layers and models, over torch's float32", "steps",
              {"times": ("every", "{ratio:.2f}"), "us": ("every", "{us:.0f}")},
              rows=("processor", "case")),
    ],
}  # fmt: skip


def derived(record: Record) -> Record:
    """Fields that follow from others. rise: the loss half a norm of the filters away from the
    weights over that at the weights.  over_...: our speed over that of a loop."""
    if slices := record.get("slices"):
        return {"rise": sum((x[5] + x[-6]) / 2 - x[10] for x in slices) / len(slices)}
    if record.get("type") == "general path":
        own, gmacs = record["gmacs"]["one thread"], {"naive": None, **record["gmacs"]}
        return {f"over_{loop}": rate and own / rate for loop, rate in gmacs.items()}
    if record.get("type") in ("install", "step"):
        return {"processor": record["environment"]["device"]}
    if record.get("type") == "update":
        return {"ns": record["fused_s"]["best"] / record["elements"] * 1e9}
    return {"unpacked": record["whole_s"] / record["quantised_s"]} if "whole_s" in record else {}


@cache
def read(record: str) -> list[Record]:
    """The records of a file without headers; the results of a sweep's cell are among its fields."""
    text = (ROOT / "bench" / "results" / f"{record}.jsonl").read_text(encoding="utf-8")
    found = [r for r in map(json.loads, text.splitlines()) if r.get("type") != "header"]
    return [r.get("values", {}) | derived(r) | r for r in found]


def written(table: Table) -> str:
    records = [r for r in read(table.record) if table.where.items() <= r.items()]

    @cache
    def results() -> Any:
        arm, status = table.rows[0], "finished"
        return table_of(Run(r[arm], {}, r["seed"], r.get("status", status), [r]) for r in records)

    @cache
    def arms(field: str, other: str = table.reference) -> dict[str, Any]:
        summary = summarise(results(), field, reference=other or None)
        return {row["arm"]: row for row in summary.to_dict("records")}

    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        key = tuple(str(record.get(name, "")) or "float32" for name in table.rows)
        groups.setdefault(key, []).append(record)
    lines = [(*table.rows, *table.columns), ["---"] * (len(table.rows) + len(table.columns))]
    for key, group in groups.items():
        row = Row(group, key[0], table.reference, arms)
        cells = [("show", c) if isinstance(c, str) else c for c in table.columns.values()]
        lines.append([*key, *(getattr(row, method)(*rest) for method, *rest in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(name: str) -> str:
    parts = [f"# Results: {name.replace('-', ' ')}", INTRODUCTION.format(name=name)]
    for table in PAGES[name]:
        link = f"[{table.record}.jsonl](../../bench/results/{table.record}.jsonl)"
        parts += [f"## {table.heading}", f"From {link}.", written(table)]
    return "\n\n".join(parts) + "\n"


def main(option: str, folder: Path = ROOT / "docs" / "results") -> int:
    write, differ = {"--write": True, "--check": False}[option], 0
    for path, text in ((folder / f"{name}.md", page(name)) for name in PAGES):
        if write:
            path.write_text(text, encoding="utf-8")
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path}: differs from the records; python -m bench.tables --write renews it")
            differ = 1
    return differ


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

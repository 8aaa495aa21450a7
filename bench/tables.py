"""``python -m bench.tables --check``: the tables of docs/results follow from bench/results.

A table of `PAGES` has its place below its heading on a page of docs/results, whose other lines are
written by hand. It has a row for each group of records that agree in the fields of `rows`, in the
order of the file. ``--write`` writes every table anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
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
    arms: Callable[[str], Mapping[str, Any]]

    def show(self, text: str, fields: Mapping[str, Any] = MappingProxyType({})) -> str:
        """A text of `str.format`, of the newest record that has these fields."""
        records = [r for r in self.records if fields.items() <= r.items()]
        try:
            return text.format(**records[-1]) if records else ""
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

    def effect(self, field: str, places: int, scale: float = 1.0) -> str:
        """The reference's figure; for another arm its mean difference to the reference, paired by
        seed, the 95% t interval, and p of the t test, corrected by Holm over the arms."""
        if self.arm == self.reference:
            return self.figure(field, places, scale)
        arm = self.arms(field)[self.arm]
        mean, low, high = (arm[f"difference{end}"] for end in ("", "_low", "_high"))
        bounds = interval(low, high, places, scale)
        p = p_text(arm["p_holm"])
        return f"{signed(mean, places, scale)} {bounds}, p {p}" if bounds else ""


#: By its heading, the cells of a column: a text that `Row.show` fills in, or the name of another
#: method of Row and its arguments.
Columns = Mapping[str, str | tuple[Any, ...]]


@dataclass(frozen=True)
class Table:
    """A table. record: a file of bench/results.  where: fields that its records must have.
    reference: the arm to compare with; an arm is a value of the first field of `rows`.
    beside: tables whose columns stand at the right of this one's, row by row."""

    heading: str
    record: str
    columns: Columns
    rows: tuple[str, ...] = ("arm",)
    reference: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[Table, ...] = ()


ACCURACY = ("test accuracy (%)", "test_accuracy", 2, 100.0)
BITS = ("bits per character", "test_bits_per_char", 4, 1.0)
BITS_3 = (*BITS[:2], 3, 1.0)
PSNR = ("test PSNR (dB)", "test_psnr", 3, 1.0)


def beside(first: Table, *others: Table) -> Table:
    return replace(first, beside=others)


def compared(
    heading: str, *columns: tuple[str, str, Any], reference: str = "fp32",
    after: Columns | None = None, **where: Any,
) -> Table:  # fmt: skip
    """The arms of sweeps beside each other; a column has a head, a record and a figure."""
    first, *others = (
        Table(heading, record, {f"{head}, {{seeds}} seeds": ("effect", *of[1:]), **(after or {})},
              reference=reference, where=where)
        for head, record, of in columns
    )  # fmt: skip
    return beside(first, *others)


ACCURACY_1 = (*ACCURACY[:2], 1, 100.0)
BITOPS: Columns = {"cost": ("relative", "bitops", 3)}
ASSIGNED: Columns = {"bit ratio": ("mean", "bit_ratio", 3), "promotions": ("mean", "promotions", 1)}
ONE, TWO = {"threads": 1}, {"threads": 2}
RATIO = "{baselines[torch][ratio]:.2f}"

#: The tables of each page of docs/results.
PAGES: dict[str, list[Table]] = {
    "formats": [
        compared("Formats of 8 bits", ("MNIST-1D (%)", "sweep-mnist1d-formats", ACCURACY)),
        compared("Scaled formats", ("GPT, text (bits)", "sweep-gpt-scaled", BITS), after={
            "error of dw": ("mean", "dw_error", 3),
            **{f"{what} {tensor}": ("mean", f"{what}_{tensor}", 3, 100)
               for tensor in ("input", "weight", "grad_output") for what in ("clipped", "zeroed")},
        }),
        compared("Four over six and scales of rows", ("GPT, text (bits)",
                 "sweep-gpt-four-over-six", BITS), reference="nvfp4, squares"),
        beside(*(compared("Second derivatives", (head, "second-order", ("", field, 3, 1.0)),
                          task=task)
                 for task, head, field in (("critic", "critic, distance", "distance"),
                                           ("heat", "heat, rms error", "rms_error")))),
    ],
    "choosing-an-accumulator": [
        compared("The default plan", ("digits32 (%)", "sweep-digits32-default-plan", ACCURACY),
                 ("Fashion-MNIST (%)", "sweep-fashion-default-plan", ACCURACY),
                 reference="fp32 sums"),
        compared("Sakr's rule as one sum",
                 ("digits (%)", "sweep-digits-accumulators", ACCURACY_1),
                 ("digits32 (%)", "sweep-digits32-accumulators", ACCURACY_1),
                 reference="fp32 sums"),
        compared("Sakr's rule as one sum and in chunks",
                 ("Fashion-MNIST (%)", "sweep-fashion-accumulators", ACCURACY),
                 reference="fp32 sums"),
        compared("Parts of a plan", ("digits32 (%)", "sweep-digits32-accumulator-parts",
                 ACCURACY_1), ("Fashion-MNIST (%)", "sweep-fashion-accumulator-parts", ACCURACY),
                 reference="fp32 sums"),
        compared("Sums of tensor cores", ("MNIST-1D (%)", "sweep-mnist1d-units", ACCURACY),
                 ("GPT, text (bits)", "sweep-gpt-units", BITS_3), reference="fp32 sums"),
        compared("Sums of AMD's matrix cores", ("GPT, text (bits)", "sweep-gpt-amd-cores", BITS),
                 reference="fp32 sums"),
    ],
    "techniques": [
        compared("Recipes", ("MNIST-1D (%)", "sweep-mnist1d-recipes", ACCURACY)),
        compared("Loss scales", ("MNIST-1D (%)", "sweep-mnist1d-loss-scale", ACCURACY)),
        compared("Where fp16 underflows", ("200 steps (dB)", "sweep-fashion-denoise", PSNR),
                 ("400 steps (dB)", "sweep-fashion-denoise-400", PSNR),
                 after={"skipped": ("mean", "skipped_steps", 1)}),
        compared("Formats, scales and masters", ("ResNet-8, digits (%)", "sweep-digits-mixed",
                 ACCURACY), ("LSTM, text (bits)", "sweep-lstm-mixed", BITS_3),
                 ("GPT, text (bits)", "sweep-gpt-mixed", BITS_3)),
        compared("Masters", ("MNIST-1D (%)", "sweep-mnist1d-masters", ACCURACY)),
        beside(*(compared("Optimizer states", (label, "optimizer-states", of),
                          after={"bytes": "{bytes_a_value:.3f}"}, task=task)
                 for label, of, task in (
                     ("MNIST-1D (%)", ("", "figure", 2, 100.0), "mnist1d cnn3"),
                     ("GPT, text (bits)", ("", "figure", 3, 1.0), "text gpt2")))),
        beside(*(compared("Schedules of the operands' bits", (label, f"sweep-{name}-schedules", of),
                          reference="cpt 3-8", after=cost)
                 for label, name, of, cost in (
                     ("LSTM, text (bits)", "lstm", BITS, {}),
                     ("MNIST-1D (%)", "mnist1d", ACCURACY, BITOPS),
                     ("Fashion-MNIST (%)", "fashion", ACCURACY, BITOPS)))),
        compared("Schedules under wrong labels", ("digits (%)", "sweep-digits-schedules", ACCURACY),
                 reference="cpt 2-8", after={**BITOPS, "recalibrated": (
                     "mean", "test_accuracy_recalibrated", 2, 100)}),
        compared("Schedules of the accumulator's bits",
                 ("MNIST-1D (%)", "sweep-mnist1d-accumulator-schedules", ACCURACY),
                 reference="cpt 2-8", after={"cost": ("relative", "adder_cost", 3)}),
        beside(*(compared("Bounds of the cycles", (f"{task} (error, %)", "precision-range",
                          ("", "error", 1, 100.0)), reference="static 8",
                          after={"cost": ("relative", "cost", 2)}, task=task)
                 for task in ("mixture of experts", "U-Net", "autoencoder"))),
        Table("Flat minima", "landscape", {
            "top eigenvalue, {seeds} seeds": ("effect", "eigenvalue", 1),
            "rise of the loss": ("effect", "rise", 2), "training loss": ("mean", "train_loss", 3),
        }, reference="static 8"),
        *(compared(heading, *((f"{task} (%)", f"sweep-{name}-assignments{loss}", ACCURACY)
                              for task, name in tasks), after=ASSIGNED)
          for heading, loss, tasks in (
              ("Assignments", "", (("MNIST-1D", "mnist1d"), ("digits", "digits"))),
              ("Assignments with the loss in low precision", "-low-loss",
               (("MNIST-1D", "mnist1d"), ("digits", "digits"))),
              ("Assignments on Fashion-MNIST", "", (("Fashion-MNIST", "fashion"),)))),
        Table("Time of a step under an assignment", "assignments", {
            f"{label}, {share} low": ("show", text, {"ratio": ratio})
            for share, ratio in (("none", 0.0), ("all", 1.0))
            for label, text in (("over plain layers", "{over:.2f}"), ("counting", "{counting:.1%}"))
        }, rows=("sums",), where={"batch": 64}),
        Table("Ways to choose configurations", "frontier-choices", {
            f"{label}, {count}": ("show", text, {"count": count})
            for label, text in (("rmse", "{rmse:.4f}"),
                                ("area", "{hypervolume:.4f} ± {hypervolume_error:.4f}"))
            for count in (0, 3, 5, 15)
        }, rows=("method",), where={"type": "average"}),
        Table("From one network to another", "frontier-transfer", {
            label: f"{{{name}:.3f}} ± {{{name}_error:.3f}}"
            for label, name in (("rmse", "rmse"), ("area", "hypervolume"), ("regret", "regret"))
        }, rows=("method", "count"), where={"type": "average"}),
    ],
    "backends": [
        Table("A product of 960^3 on an Intel Xeon", "intel-xeon-processor", {
            "GMAC/s": ("show", "{rate:.1f}", ONE), "of torch": ("show", RATIO, ONE),
            "GMAC/s, 2 threads": ("show", "{rate:.1f}", TWO), "of torch, 2": ("show", RATIO, TWO),
        }, rows=("case",), where={"op": "matmul", "shape": [960, 960, 960]}),
        Table("A training step of ResNet-20 on an Intel Xeon", "intel-xeon-processor", {
            "speed, of torch": ("show", RATIO, ONE)}, rows=("case",), where={"op": "train_step"}),
        Table("Speed over that of loops, one thread of an AMD EPYC (Zen 4)", "general-path", {
            f"{loop} loop": f"{{over_{loop}:.0f}}" for loop in ("exact", "scalar", "naive")
        }, rows=("operands", "accumulator")),
        beside(*(Table("Instructions a product", "instructions",
                       {f"{processor} {isa}": "{instructions_per_product:.1f}"},
                       rows=("operands", "accumulator"),
                       where={"processor": processor, "isa": isa})
                 for processor, isas in (("aarch64", ("loop", "neonfp16", "neon", "scalar")),
                                         ("x86_64", ("loop", "avx2", "scalar"))) for isa in isas)),
        beside(*(Table("An optimizer's step", "updates", {
            f"{optimizer}: bytes": "{bytes_per_element:.0f}", "ns": ("show", "{ns:.2f}", ONE),
            "of copy_": ("show", "{of_copy:.2f}", ONE), "2 threads": ("show", "{of_copy:.2f}", TWO),
        }, rows=("setting",), where={"type": "update", "optimizer": optimizer})
                 for optimizer in ("AdamW", "SGD"))),
        Table("A diagnosed step", "diagnosis",
              {"best": "{over:+.1%}", "median": "{over_median:+.1%}"}, ("recipe", "diagnose")),
        Table("An install on 2 cores", "install", {
            "seconds": ("every", "{seconds:.0f}"), "objects": "{objects}",
            "processor's seconds": ("every", "{processor_seconds:.0f}"),
            "compiler's seconds": ("every", "{object_seconds:.0f}"), "MB": "{module_mb:.2f}",
        }, rows=("processor", "part", "nvcc")),
        beside(*(Table("Small layers and models, over torch's float32", "steps",
                       {f"{name}: times": ("every", "{ratio:.2f}"), "us": ("every", "{us:.0f}")},
                       rows=("case",), where={"processor": processor})
                 for name, processor in (("Intel Xeon", "Intel(R) Xeon(R) Processor"),
                                         ("AMD EPYC", "AMD EPYC")))),
    ],
}  # fmt: skip


def derived(record: Record) -> Record:
    """Fields that follow from others. rise: the loss half a norm of the filters away from the
    weights over that at the weights.  over_...: our speed over that of a loop."""
    if slices := record.get("values", {}).get("slices"):
        return {"rise": sum((x[5] + x[-6]) / 2 - x[10] for x in slices) / len(slices)}
    if record.get("type") == "general path":
        own, gmacs = record["gmacs"]["one thread"], {"naive": None, **record["gmacs"]}
        return {f"over_{loop}": rate and own / rate for loop, rate in gmacs.items()}
    if record.get("type") in ("install", "step"):
        return {"processor": record["environment"]["device"]}
    if record.get("type") == "update":
        setting = record["case"].removeprefix(record["optimizer"]).strip()
        return {"ns": record["fused_s"]["best"] / record["elements"] * 1e9, "setting": setting}
    return {}


@cache
def read(record: str) -> list[Record]:
    """The records of a file without headers; the results of a sweep's cell are among its fields."""
    text = (ROOT / "bench" / "results" / f"{record}.jsonl").read_text(encoding="utf-8")
    found = [r for r in map(json.loads, text.splitlines()) if r.get("type") != "header"]
    return [r.get("values", {}) | derived(r) | r for r in found]


def rows(table: Table) -> dict[tuple[str, ...], list[str]]:
    """The cells of the heads, then those of each row, by the values of the fields `rows`."""
    records = [r for r in read(table.record) if table.where.items() <= r.items()]

    @cache
    def results() -> Any:
        arm, status = table.rows[0], "finished"
        return table_of(Run(r[arm], {}, r["seed"], r.get("status", status), [r]) for r in records)

    @cache
    def arms(field: str) -> dict[str, Any]:
        summary = summarise(results(), field, reference=table.reference or None)
        return {row["arm"]: row for row in summary.to_dict("records")}

    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        key = tuple(str(record.get(name, "")) or "float32" for name in table.rows)
        groups.setdefault(key, []).append(record)
    seeds = str(len({r.get("seed") for r in records}))
    cells = {table.rows: [head.replace("{seeds}", seeds) for head in table.columns]}
    for key, group in groups.items():
        row = Row(group, key[0], table.reference, arms)
        columns = [("show", c) if isinstance(c, str) else c for c in table.columns.values()]
        cells[key] = [getattr(row, method)(*arguments) for method, *arguments in columns]
    return cells


def written(table: Table) -> str:
    parts = [rows(each) for each in (table, *table.beside)]
    lines = []
    for key in dict.fromkeys(key for part in parts for key in part):
        cells = [part.get(key, [""] * len(part[table.rows])) for part in parts]
        lines.append([*key, *(cell for group in cells for cell in group)])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str, tables: list[Table]) -> str:
    """The page with every table of the records below its heading."""
    for table in tables:
        above = rf"^#+ {re.escape(table.heading)}\n(?:(?![#|]).*\n)*"
        places = [*re.finditer(rf"({above})(?:\|.*\n)+", text, re.MULTILINE)]
        if len(places) != 1:
            raise ValueError(
                f"expected one table below the heading {table.heading!r}, got {len(places)}; "
                "begin a new one with the line | |"
            )
        place = places[0]
        text = text[: place.end(1)] + written(table) + "\n" + text[place.end() :]
    return text


def main(option: str, folder: Path = ROOT / "docs" / "results") -> int:
    write, differ = {"--write": True, "--check": False}[option], 0
    for name, tables in PAGES.items():
        path = folder / f"{name}.md"
        before = path.read_text(encoding="utf-8")
        after = page(before, tables)
        if write:
            path.write_text(after, encoding="utf-8")
        elif before != after:
            print(f"{path}: differs from the records; python -m bench.tables --write renews it")
            differ = 1
    return differ


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

"""Draws docs/pictures/gpt-scaled-errors.png: what a GPT's layers lose in scaled formats.

    python -m bench.scaled_training

Means over the seeds of bench/results/sweep-gpt-scaled.jsonl at the end of training: the error of
each weight's gradient, and the shares of operands that are clipped and that become zero.
"""

from __future__ import annotations

from pathlib import Path

from lpkernels.experiments.sweeps.results import read_results
from lpkernels.report.figures import panels, save_figure

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "bench" / "results" / "sweep-gpt-scaled.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "gpt-scaled-errors.png"
ARMS = ("te_current", "deepseek_v3", "mxfp8", "mxfp8_ocp", "nvfp4", "nvfp4_pretraining", "mxfp4")
LAYERS = [f"{block}.{name}" for block in (0, 1) for name in ("qkv", "proj", "up", "down")]
FIGURES = {
    "dw_error": "error of dw, by its norm",
    "clipped_input": "inputs clipped",
    "zeroed_input": "inputs that become zero",
    "zeroed_grad_output": "gradients that become zero",
}


def main() -> None:
    table = read_results(RECORD).table
    arms = table[table["status"] == "finished"].groupby("arm")
    grid = panels(len(FIGURES), (5.2, 3.3))
    figure = grid[0].figure
    for axes, (name, label) in zip(grid, FIGURES.items(), strict=True):
        for arm in ARMS:
            columns = [f"{name}_blocks.{layer}" for layer in LAYERS]
            values = arms.get_group(arm)[columns].astype(float).mean()
            axes.plot(range(len(LAYERS)), values, marker="o", markersize=3, label=arm)
        axes.set_xticks(range(len(LAYERS)), LAYERS, rotation=30)
        axes.set_yscale("log" if name == "dw_error" else "linear")
        axes.set_ylabel(label)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(ARMS))
    save_figure(figure, PICTURE, "What each layer loses, at the end of 150 steps")


if __name__ == "__main__":
    main()

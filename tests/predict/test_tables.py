"""Tables of predictions."""

from bench.predict.records import Prediction
from bench.predict.tables import prediction_table, ratio, total_table
from tests.report.shown import text

ROW = {
    "layer": "lstm", "gemm": "fprop", "times": 64, "sizes": [1, 32, 512, 128], "kernel": "fused",
    "tile": [8, 512], "waves": 1, "splits": 1, "launches": 512, "instructions": 4.5678,
    "scratch": 16384, "microseconds": 1234.56, "share": 0.25, "fp32_microseconds": 12.3456,
}  # fmt: skip
TOTAL = {
    "device": "h100", "model": "tiny-lstm", "batch": 32, "recipe": "fp8_wang2018", "products": 64,
    "microseconds": 1234.56, "ratio": 100.4, "fp32_microseconds": 12.3456, "launches": 512,
    "launch_microseconds": 1024.0, "packing_launches": 256, "packing_microseconds": 3.4,
    "scratch": 16384,
}  # fmt: skip
PREDICTION = Prediction("triton", [ROW], TOTAL)


def test_predictions_have_every_figure_of_a_product_and_of_all() -> None:
    row, total = text(prediction_table(PREDICTION), 160), text(total_table([PREDICTION]), 160)
    for part in (
        "lstm (64 times)", "1x32x512x128", "8x512", "512", "4.57", "16.00 KiB", "1,234.6", "25.0%",
        "100",
    ):  # fmt: skip
        assert part in row
    assert "…" not in text(prediction_table(PREDICTION), 80)
    for part in ("triton", "1,235", "100", "512", "1,024", "256", "16.00 KiB"):
        assert part in total
    ratios = [ratio(x) for x in (0.1234, 6.6558, 66.28, 822.9, 26345.0)]
    assert ratios == ["0.123", "6.66", "66.3", "823", "26,345"]

"""`lpkernels vectors`: the files of test vectors, read back through the product itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.support.commands import call, done, sentence

SUMS = [
    "h100_e4m3", "a100_fp16", "mi300_e4m3fnuz", "rdna3_bf16", "mi250_fp16", "e6m9_chunk4",
    "e5m10:toward_zero", "fp32:order=pairwise",
]  # fmt: skip


@pytest.mark.parametrize("text", SUMS)
def test_the_files_hold_the_bits_of_the_product(text: str, tmp_path: Path) -> None:
    done("vectors", text, "--k", 7, "--cases", 70, "--out", tmp_path)
    about = json.loads((tmp_path / "vectors.json").read_text())
    acc, formats = lp.accumulator(text), [lp.parse_format(x) for x in about["operands"]]
    assert lp.accumulator(about["accumulator"]) == acc
    a, b, c = (read(tmp_path / f"{x}.hex", f) for x, f in zip("abc", (*formats, None), strict=True))
    start = None if "pairwise" in text else c.view(-1, 1, 1)
    want = lp.matmul(a.unsqueeze(1), b.unsqueeze(2), acc, initial=start, backend="reference")
    assert_bit_equal(read(tmp_path / "d.hex"), want.view(-1, 1))
    arrays = np.load(tmp_path / "vectors.npz")
    for name, x in (("a", a), ("b", b), ("c", c.view(-1)), ("d", want.view(-1))):
        assert_bit_equal(arrays[name], x.numpy())


def read(path: Path, fmt: lp.FloatFormat | None = None) -> torch.Tensor:
    """The values of the codes in a file, a row for each line."""
    codes = np.array([[int(x, 16) for x in line.split()] for line in path.read_text().splitlines()])
    if fmt is None:
        return torch.from_numpy(codes.astype(np.uint32).view(np.float32))
    bits = (codes[..., None] >> np.arange(fmt.bits) & 1).astype(np.uint8)
    stream = torch.from_numpy(np.packbits(bits, bitorder="little"))
    return lp.unpack(stream, fmt, codes.shape)


def test_every_kind_of_hard_case_is_there(tmp_path: Path) -> None:
    done("vectors", "fp16:block=4:aligned_bits=24:operands=fp16", "--cases", 700, "--out", tmp_path)
    x = np.load(tmp_path / "vectors.npz")
    assert np.isnan(x["d"]).any() and np.isinf(x["d"]).any() and np.isinf(x["a"]).any()
    assert (np.abs(x["d"][2::7]) < 0.1).mean() > 0.9
    assert (np.abs(x["a"][3::7]) <= 2.0**-14).all()


@pytest.mark.parametrize("text", ["native", "e5m2:stochastic", "model_b200_mxf8"])
def test_sums_whose_bits_do_not_follow_from_the_operands_are_refused(text: str, tmp_path: Path):
    said = sentence(call("vectors", text, "--out", tmp_path), 2)
    assert "accumulator whose bits follow from a, b and c alone" in said


def test_a_unit_has_operands_of_its_own_format(tmp_path: Path) -> None:
    done("vectors", "mi100_fp32", "--cases", 7, "--out", tmp_path)
    assert json.loads((tmp_path / "vectors.json").read_text())["operands"] == ["e8m23"] * 2
    said = sentence(call("vectors", "mi300_fp16", "--operands", "bf16", "--out", tmp_path), 2)
    assert "mi300_fp16 takes e5m10, e5m10, got bf16" in said

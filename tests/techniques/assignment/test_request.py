"""Assignments as text."""

from pathlib import Path
from typing import Any

import pytest
from torch.nn.functional import cross_entropy

from lpkernels.techniques.assignment import Formats, demote, group, operator_based, trace, uniform
from lpkernels.techniques.assignment.request import Request
from tests.loops import rows
from tests.support.refusals import refuses
from tests.techniques.assignment.networks import chain_batch, chain_model


@rows(
    "text, fields",
    ("ratio=0.6,order=decreasing,promote=0.01", {"ratio": 0.6}),
    ("ratio=0.6, order=increasing ,promote=none",
     {"ratio": 0.6, "order": "increasing", "promote": None}),
    ("bits=1000,order=increasing", {"bits": 1000, "order": "increasing"}),
    ("ratio=0.5,order=random,seed=3", {"ratio": 0.5, "order": "random", "seed": 3}),
    ("uniform,promote=none", {"rule": "uniform", "promote": None}),
    ("operator_based,fan_out=branches", {"rule": "operator_based", "fan_out": "branches"}),
    ("file=a.json,promote=0.1", {"rule": "file", "file": "a.json", "promote": 0.1}),
    ("ratio=1,low=e3m2none_sat", {"ratio": 1.0, "low": "e3m2none_sat"}),
)  # fmt: skip
def test_texts_are_read_and_written(text: str, fields: dict[str, Any]) -> None:
    assert Request.parse(text) == Request(**fields)
    assert Request.parse(str(Request(**fields))) == Request(**fields)


WRONG = [
    ("", "cannot read '' in ''; expected uniform, operator_based, amp_like or .*ratio=<value>"),
    ("size=3", "cannot read 'size=3' in"),
    ("ratio=0.5,ratio=0.6", "gives its ratio twice"),
    ("ratio=nan", "cannot read 'ratio=nan' in 'ratio=nan': expected a finite number"),
    ("ratio=1.5", "ratio: expected a finite number .* most 1, got 1.5"),
    ("bits=-1", "bits: expected at least 0, got -1"),
    ("promote=2,ratio=1", "promote: expected a finite number .* most 1, got 2"),
    ("promote=0.01", "give ratio or bits, one of them"),
    ("ratio=0.5,order=random", "order='random' takes an int as seed"),
    ("ratio=0.5,fan_out=both", "fan_out: expected one of sum, branches, got 'both'"),
    ("uniform,ratio=0.5", "uniform takes no ratio, bits, order or seed; leave them out"),
    ("ratio=0.5,low=e9m9", "weight: .*exp_bits must be in 1..8, got 9"),
    ("ratio=0.5,low=fp32", "more than the 16"),
]
test_wrong_texts_are_refused = refuses(
    Request.parse, [((text,), {}, ValueError, match) for text, match in WRONG]
)


def test_each_text_gives_what_its_function_gives(tmp_path: Path) -> None:
    ops = trace(chain_model(), cross_entropy, chain_batch())
    groups = group(ops)
    demote(groups, 0.5).save(tmp_path / "a.json")
    low = ("fp_6_9_0:nearest_away", "e3m2none_sat:nearest_away")
    gradients = ("fp_6_9_0_backward:nearest_away", "e4m1none:toward_zero")
    harsh = Formats(weight=low, activation=low, grad_activation=gradients)
    expected = {
        "ratio=0.6": demote(groups, 0.6),
        "ratio=0.6,order=random,seed=2": demote(groups, 0.6, order="random", seed=2),
        "bits=130000,order=increasing": demote(groups, bits=130000, order="increasing"),
        "uniform": uniform(ops),
        "operator_based": operator_based(ops),
        f"file={tmp_path / 'a.json'}": demote(groups, 0.5),
        "ratio=1,low=e3m2none_sat,low_grad=e4m1none:toward_zero": demote(groups, 1, formats=harsh),
    }
    for text, assignment in expected.items():
        assert Request.parse(text).assignment(ops) == assignment, text
    with pytest.raises(ValueError, match="rule: expected one of demote, uniform"):
        Request(rule="half")

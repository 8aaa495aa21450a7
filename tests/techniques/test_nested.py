"""Tensors inside nested values are found and replaced; what has none of them stays itself."""

from collections import OrderedDict, namedtuple

import torch

from lpkernels.techniques._nested import all_tensors, changed

Pair = namedtuple("Pair", "left right")


def test_tensors_are_found_by_name_and_replaced_by_number_at_any_depth() -> None:
    a, b, c, d = (torch.full((1,), i, dtype=torch.float32) for i in range(4))
    value = [a, {"x": (b, 3)}, OrderedDict(y=c), Pair("text", {0: d})]
    assert list(all_tensors({"v": value})) == ["v.0", "v.1.x.0", "v.2.y", "v.3.1.0"]
    found = changed(value, lambda number, x: x + 10 * number)
    assert [x.item() for x in all_tensors({"": found}).values()] == [0, 11, 22, 33]
    assert [type(x) for x in found] == [torch.Tensor, dict, OrderedDict, Pair]


def test_what_does_not_change_stays_itself() -> None:
    value = (torch.ones(1), [Pair(1, torch.ones(1))], {"a": None})
    assert changed(value, lambda number, x: x) is value
    kept = changed(value, lambda number, x: x if number else -x)
    assert kept is not value and kept[1] is value[1] and kept[2] is value[2]

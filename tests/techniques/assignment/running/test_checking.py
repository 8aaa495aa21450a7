"""check_batch."""

from __future__ import annotations

import pytest
from torch.nn.functional import cross_entropy

from lpkernels.techniques.assignment import assign, demote, group, trace
from lpkernels.techniques.assignment.running.checking import check_batch
from tests.techniques.assignment.networks import chain_batch, chain_model


def test_a_shorter_batch_may_come_first_once_the_whole_one_is_checked():
    model, batch = chain_model(), chain_batch()
    made = demote(group(trace(model, cross_entropy, batch)), 0.6)
    refused = assign(model, cross_entropy, made)
    with pytest.raises(ValueError, match="it is of another batch"):
        refused(*chain_batch(3))
    with pytest.raises(ValueError, match="it is of another batch"):
        check_batch(refused, *chain_batch(3))
    checked = assign(model, cross_entropy, made)
    check_batch(checked, *batch)
    checked(*chain_batch(3)).backward()
    assert checked.step() == ()
    checked.remove()
    with pytest.raises(RuntimeError, match="it was removed"):
        check_batch(checked, *batch)

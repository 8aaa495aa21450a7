"""The options of an update are those of torch's optimizers."""

import inspect

import torch

from lpkernels.arithmetic import Adam, Sgd


def test_defaults_are_those_of_torch() -> None:
    sgd, adam = (
        {name: parameter.default for name, parameter in inspect.signature(of).parameters.items()}
        for of in (torch.optim.SGD, torch.optim.Adam)
    )
    assert {name: sgd[name] for name in Sgd._field_defaults} == Sgd._field_defaults
    own = dict(Adam._field_defaults)
    assert (own.pop("beta1"), own.pop("beta2")) == adam["betas"]
    assert own.pop("decoupled") == adam["decoupled_weight_decay"]
    assert {name: adam[name] for name in own} == own

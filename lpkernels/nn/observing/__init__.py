"""Observation of a running model: a visitor gets each call, with tensors and gradients.

class Largest(Visitor):
    def gradient(self, call, of, gradient):
        print(call.module, call.operation, of, gradient.abs().max())

with observe(model, Largest()):
    loss(model(x)).backward()
"""

from lpkernels.nn.layers import WITHOUT_PRODUCTS
from lpkernels.nn.observing.observer import observe
from lpkernels.nn.observing.visiting import Call, Run, Visitor
from lpkernels.nn.torch_functions import EVERYTHING, LAYERS, PRODUCTS

__all__ = [
    "EVERYTHING",
    "LAYERS",
    "PRODUCTS",
    "WITHOUT_PRODUCTS",
    "Call",
    "Run",
    "Visitor",
    "observe",
]

"""How the products of the GPU backends are made, and what that takes.

What they take is predicted without a GPU, from sizes and from counts of machine code that the
package holds; docs/predictions.md has the model.
"""

from lpkernels.backends.planning.costs import Cost, Costs, costs
from lpkernels.backends.planning.devices import DEVICES, Device, device, device_of
from lpkernels.backends.planning.plans import Plan
from lpkernels.backends.planning.shapes import Call, Shape, products

__all__ = [
    "DEVICES",
    "Call",
    "Cost",
    "Costs",
    "Device",
    "Plan",
    "Shape",
    "costs",
    "device",
    "device_of",
    "products",
]

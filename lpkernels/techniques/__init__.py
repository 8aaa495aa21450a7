"""Training techniques built on emulated arithmetic: one paper, one module.

A technique is imported when it is first used.
"""

from typing import TYPE_CHECKING

from lpkernels._first_use import on_first_use

__all__ = ["accumulation", "assignment", "cpt", "loss_scaling", "pareto"]

if TYPE_CHECKING:
    from lpkernels.techniques import accumulation, assignment, cpt, loss_scaling, pareto
else:
    __getattr__, __dir__ = on_first_use(__name__, __all__)

"""The three runs of the demo."""

from lpkernels.experiments.sweeps.specification import SweepSpec

# Wang et al. 2018 (arXiv 1812.08011): e5m2 operands, e6m9 sums in chunks of 64, 16-bit operands in
# the last layer and for the images, weight updates rounded stochastically to e6m9, one static loss
# scale. Theirs is 1000; 1024 is the power of two next to it, by which float32 gradients are
# multiplied and divided without a rounding.
_FP8 = {"recipe": "fp8_wang2018", "weight_update": "e6m9:stochastic", "loss_scale": 1024.0}


def demo_spec(*, epochs: int = 8, seed: int = 0) -> SweepSpec:
    """One network, seed and data set: in fp32, in FP8, in FP8 with too narrow an accumulator.

    The third run keeps every sum in e5m2 too, the format of the operands, without chunks: a sum
    that has grown to 16 times a product no longer changes when the product is added, and the weight
    gradients of the first layers sum batch * 8 * 8 = 8192 products. Batch norm and the falling
    learning rate repair much of the damage, so that the run learns late and ends well below the
    others, rather than failing.
    """
    base = {"model": "resnet14", "width": 16, "data": "digits", "batch": 128, "augment": True}
    arms = {"fp32": {}, "fp8": _FP8, "fp8, 8-bit sums": {**_FP8, "acc": "e5m2"}}
    base |= {"epochs": epochs, "threads": 2}
    return SweepSpec(base=base, arms=arms, seeds=[seed], name="demo")

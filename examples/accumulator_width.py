"""How the mantissa of the accumulator limits a sum: one matrix product, many accumulators.

A sum that has grown to S absorbs nothing smaller than half its last place: with m mantissa bits,
products below S * 2^-(m+2) are lost. Chunks keep each running sum short; stochastic rounding loses
nothing on average.

    python examples/accumulator_width.py --length 4096
"""

import argparse

import torch

import lpkernels as lp


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096, help="products in each sum")
    length = parser.parse_args().length

    generator = torch.Generator().manual_seed(0)
    # The values are positive, as after a ReLU: the running sums grow with the length.
    a = lp.quantize(torch.rand(16, length, generator=generator), "e5m2")
    b = lp.quantize(torch.rand(length, 16, generator=generator), "e5m2")
    exact = a.double() @ b.double()

    errors = {}
    print(f"relative error of sums of {length} products of e5m2 values")
    print(f"{'format':8}{'one sum':>12}{'chunks of 64':>16}{'stochastic':>14}")
    for man_bits in range(3, 13):
        fmt = f"e6m{man_bits}"
        for kind, acc in {
            "one sum": lp.Accumulator(fmt),
            "chunks of 64": lp.Accumulator(fmt, chunk=64),
            "stochastic": lp.Accumulator(fmt, "stochastic"),
        }.items():
            c = lp.matmul(a, b, acc, generator=torch.Generator().manual_seed(1))
            errors[f"{fmt} {kind}"] = ((c - exact) / exact).abs().mean().item()
        one, chunks, stochastic = (
            errors[f"{fmt} {k}"] for k in ("one sum", "chunks of 64", "stochastic")
        )
        print(f"{fmt:8}{one:12.5f}{chunks:16.5f}{stochastic:14.5f}")
    return errors


if __name__ == "__main__":
    main()

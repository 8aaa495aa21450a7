"""Train one converted model on several processes: DDP, or FSDP2 with --fsdp.

lp.convert comes before the wrapper. Weights start alike on all ranks; random bits differ by rank.

    torchrun --standalone --nproc-per-node 2 examples/train_on_two_processes.py
"""

import argparse
import dataclasses
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lpkernels as lp


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int, default=1797, help="fewer for a quick try")
    parser.add_argument("--fsdp", action="store_true", help="shard the weights")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()

    digits = load_digits()
    x = torch.tensor(digits.images[: options.images], dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target[: options.images])
    split = len(y) * 4 // 5

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    # Gradients are rounded stochastically to e5m2: every layer draws random bits.
    recipe = dataclasses.replace(lp.recipe("fp8_wang2018"), grad_output="e5m2:stochastic")
    lp.convert(model, recipe, exclude="5")
    network = fully_shard(model) if options.fsdp else DistributedDataParallel(model)

    torch.manual_seed(1 + rank)  # a rank's own random bits
    order = torch.Generator().manual_seed(0)  # one order of the images for all ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_scale = 1024.0
    for epoch in range(options.epochs):
        for batch in torch.randperm(split, generator=order).split(64):
            index = batch[rank::processes]
            loss = nn.functional.cross_entropy(network(x[index]), y[index])
            optimizer.zero_grad()
            (loss * loss_scale).backward()
            for parameter in model.parameters():
                parameter.grad /= loss_scale
            optimizer.step()
        with torch.no_grad():
            accuracy = (network(x[split:]).argmax(dim=1) == y[split:]).float().mean().item()
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {loss.item():.4f}  test accuracy {accuracy:.2%}")
    time.sleep(0.5)  # gloo's threads let go of their last work: else torch 2.13 may hang here
    dist.destroy_process_group()
    return accuracy


if __name__ == "__main__":
    main()

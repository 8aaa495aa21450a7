"""Models as the transformers library builds them: its code, random weights, tiny sizes.

Nothing here is written for lpkernels. No file is read and no network used: each model comes from a
configuration.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp

# transformers reads this once, when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
CLASSES, VOCABULARY, LENGTH = 4, 32, 10
Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """A model and a batch for it.

    build() makes the model from torch's seed. batch() makes what the model is called with, labels
    included. products is the number of modules that multiply.
    """

    build: Callable[[], Any]
    batch: Callable[[], Batch]
    products: int

    def model(self, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        return self.build()


def _images(size: int, count: int) -> Callable[[], Batch]:
    def batch() -> Batch:
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(count, 3, size, size, generator=generator)
        return {"pixel_values": images, "labels": torch.arange(count) % CLASSES}

    return batch


def _tokens(every_token_has_a_label: bool) -> Callable[[], Batch]:
    """Four sequences, of which the last is shorter: its end is masked."""

    def batch() -> Batch:
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(0, VOCABULARY, (4, LENGTH), generator=generator)
        mask = torch.ones_like(tokens)
        mask[3, 6:] = 0
        labels = tokens if every_token_has_a_label else torch.arange(4) % CLASSES
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}

    return batch


def _built(name: str, purpose: str, **options: Any) -> Callable[[], Any]:
    """The family's model for a purpose, from its configuration with these options."""
    config = getattr(transformers, f"{name}Config")
    model = getattr(transformers, f"{name}{purpose}")
    return lambda: model(config(**options))


def _with_attention(name: str, batch: Any, products: int, purpose: str, **options: Any) -> Any:
    """The family with both ways to compute attention."""
    return {
        f"{name.lower()}-{attention}": Architecture(
            _built(name, purpose, **options, attn_implementation=attention), batch, products
        )
        for attention in ("eager", "sdpa")
    }


_IMAGES, _CLASSES = "ForImageClassification", {"num_labels": CLASSES}
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
_TEXT = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}

#: By name; the transformers with both ways to compute attention.
ARCHITECTURES: dict[str, Architecture] = {
    "resnet": Architecture(
        _built("ResNet", _IMAGES, **_CLASSES, embedding_size=8, hidden_sizes=[8, 16],
               depths=[1, 2], layer_type="bottleneck"),
        _images(16, 4), 12,
    ),
    "mobilenet_v2": Architecture(
        _built("MobileNetV2", _IMAGES, **_CLASSES, image_size=16, depth_multiplier=0.1,
               depth_divisible_by=4, min_depth=4, output_stride=8, classifier_dropout_prob=0.0),
        _images(16, 8), 53,
    ),
    **_with_attention("ViT", _images(8, 4), 16, _IMAGES, **_SIZES, **_CLASSES,
                      num_attention_heads=2, image_size=8, patch_size=4),
    **_with_attention("Bert", _tokens(False), 16, "ForSequenceClassification", **_SIZES, **_CLASSES,
                      num_attention_heads=2, vocab_size=VOCABULARY,
                      max_position_embeddings=LENGTH),
    **_with_attention("GPT2", _tokens(True), 11, "LMHeadModel", **_TEXT, n_positions=LENGTH,
                      n_embd=16, n_layer=2, n_head=2),
    # Four heads of queries share two heads of keys and values.
    **_with_attention("Llama", _tokens(True), 17, "ForCausalLM", **_SIZES, **_TEXT,
                      num_attention_heads=4, num_key_value_heads=2,
                      max_position_embeddings=LENGTH),
}  # fmt: skip
_NARROW = lp.Accumulator("e6m7", chunk=16)
RECIPES = {
    # 8-bit operands, 16-bit sums in chunks of 64, first and last layer alike.
    "fp8": lp.recipe("fp8_wang2018"),
    # float32 operands, narrow sums.
    "sums": lp.Recipe(fprop=_NARROW, dgrad=_NARROW, wgrad=_NARROW),
}
#: Both recipes for every family: the transformers take one with either way to compute attention.
_SUMS = ("resnet", "vit-eager", "bert-eager", "gpt2-eager", "llama-eager")
WITH_RECIPES = [("resnet", "fp8")] + [
    (name, "sums" if name in _SUMS else "fp8") for name in ARCHITECTURES
]


def backward(model: nn.Module, batch: Batch) -> float:
    """The loss; gradients are left in the parameters. Dropout draws the same each time."""
    torch.manual_seed(2)
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.item()

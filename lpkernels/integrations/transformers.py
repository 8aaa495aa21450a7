"""Converted models of the transformers library, which come back converted from `from_pretrained`.

Whoever loads such a model imports this module first. It registers the method "lpkernels" with
transformers, tried with 5.23. Where it was not imported, transformers warns of an "Unknown
quantization type" and gives the layers of torch.nn.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from lpkernels.nn import convert
from lpkernels.nn.policies import policy_of, policy_values

__all__ = ["remember"]

METHOD = "lpkernels"


def remember(model: PreTrainedModel) -> PreTrainedModel:
    """Let `save_pretrained` write the recipes that a converted model has now to its config.json.

    Under the key "quantization_config" stand the method and what `lpkernels.save_policy` writes of
    the model; weights are saved as ever. Call it again after recipes were changed.

    Args:
        model: of transformers, converted.

    Returns:
        The model.

    Raises:
        TypeError: no model of transformers.
        ValueError: no module of it is converted, or it is quantised by another method.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"remember: expected a transformers.PreTrainedModel, got {type(model).__name__}; "
            "lp.save_policy writes the recipes of any model to a file"
        )
    method = dict(getattr(model.config, "quantization_config", None) or {}).get("quant_method")
    if method not in (None, METHOD):
        raise ValueError(
            f"remember: the model is quantised already, by {method}, and config.json holds one "
            "method; load the model without it"
        )
    model.config.quantization_config = PolicyConfig(policy_values(model))
    return model


@register_quantization_config(METHOD)
class PolicyConfig(QuantizationConfigMixin):
    """The entry "quantization_config" of config.json.

    Raises: TypeError, ValueError: no policy; see `lpkernels.load_policy`.
    """

    def __init__(self, policy: dict[str, Any], quant_method: str = METHOD) -> None:
        self.quant_method = quant_method
        self.policy = policy
        self.recipes()

    def recipes(self) -> Any:
        """The policy as a mapping for `convert`."""
        return policy_of(self.policy, "config.json: quantization_config")


@register_quantizer(METHOD)
class PolicyQuantizer(HfQuantizer):
    """Converts a model before its weights, and the running ranges of its layers, are loaded."""

    # The recipes come from config.json alone: for a plain model there is lp.convert.
    requires_calibration = True
    is_trainable = True
    # Trainer would ask for adapters otherwise: here the weights themselves are trained.
    is_qat_trainable = True

    def is_serializable(self) -> bool:
        return True

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, **others: Any
    ) -> PreTrainedModel:
        return convert(model, self.quantization_config.recipes())

"""Converted models of transformers: saved with their recipes, loaded converted, trained on."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.models.architectures import ARCHITECTURES, transformers

# It needs transformers, without which the import above skips this file.
integration = importlib.import_module("lpkernels.integrations.transformers")
auto = importlib.import_module("transformers.quantizers.auto")
# A schedule's policy: its layers have buffers of their own, which are saved and loaded too.
POLICY = "cpt_fu2021"
BATCH = ARCHITECTURES["gpt2-sdpa"].batch()


def saved(folder: Path, name: str = "gpt2-sdpa", policy: Any = POLICY) -> Any:
    """A model after a training step's forward pass, in evaluation, saved with its recipes."""
    model = lp.convert(ARCHITECTURES[name].model(), policy)
    model(**ARCHITECTURES[name].batch())
    integration.remember(model.eval()).save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if not name.endswith("-eager")])
def test_a_loaded_model_is_converted_and_equal_to_the_bit(tmp_path: Path, name: str) -> None:
    model = saved(tmp_path, name)
    loaded = type(model).from_pretrained(tmp_path)
    assert [type(m) for m in loaded.modules()] == [type(m) for m in model.modules()]
    batch = ARCHITECTURES[name].batch()
    assert_bit_equal(loaded(**batch).logits, model(**batch).logits)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes transformers as it is before the integration is imported."""
    for registry in (auto.AUTO_QUANTIZER_MAPPING, auto.AUTO_QUANTIZATION_CONFIG_MAPPING):
        monkeypatch.delitem(registry, "lpkernels")


def test_importing_the_module_makes_the_method_known(tmp_path: Path, monkeypatch: Any) -> None:
    model = saved(tmp_path)
    forget(monkeypatch)
    monkeypatch.delitem(sys.modules, integration.__name__)
    importlib.import_module(integration.__name__)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_bit_equal(loaded(**BATCH).logits, model(**BATCH).logits)


@pytest.mark.slow
def test_a_new_process_that_imports_the_module_gives_the_same_bits(tmp_path: Path) -> None:
    # Here a fresh interpreter is the subject, which takes ten seconds to import transformers.
    model = saved(tmp_path)
    torch.save(BATCH["input_ids"], tmp_path / "ids.pt")
    code = (
        "import sys, torch, transformers, lpkernels.integrations.transformers as integration; "
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]); "
        "ids = torch.load(sys.argv[1] + '/ids.pt'); "
        "torch.save(model(ids).logits, sys.argv[1] + '/logits.pt')"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_bit_equal(torch.load(tmp_path / "logits.pt"), model(BATCH["input_ids"]).logits)


def test_the_configuration_is_a_policy_file_and_a_loaded_model_is_saved_alike(tmp_path: Path):
    model = saved(tmp_path)
    text = (tmp_path / "config.json").read_text()
    entry = json.loads(text)["quantization_config"]
    assert entry["quant_method"] == "lpkernels"
    lp.save_policy(model, tmp_path / "policy.json")
    assert entry["policy"] == json.loads((tmp_path / "policy.json").read_text())
    loaded = type(model).from_pretrained(tmp_path)
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_text() == text


def test_recipes_that_changed_are_saved_after_another_call(tmp_path: Path) -> None:
    model = lp.set_recipe(saved(tmp_path), "lba_m7e4")
    integration.remember(model).save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.transformer.h[0].mlp.c_fc.recipe == lp.recipe("lba_m7e4")


def test_trainer_takes_a_loaded_model(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    loaded = type(saved(tmp_path)).from_pretrained(tmp_path)
    options = {"use_cpu": True, "report_to": [], "max_steps": 1, "save_strategy": "no"}
    rows = [{k: v[0] for k, v in BATCH.items()}] * 2
    before = loaded.transformer.h[0].mlp.c_fc.weight.clone()
    arguments = transformers.TrainingArguments(str(tmp_path / "run"), **options)
    transformers.Trainer(loaded, arguments, train_dataset=rows).train()
    assert not torch.equal(loaded.transformer.h[0].mlp.c_fc.weight, before)


def test_trainer_in_bf16_makes_the_steps_of_a_loop_by_hand(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    batch = ARCHITECTURES["llama-sdpa"].batch()
    models = [ARCHITECTURES["llama-sdpa"].model().bfloat16() for _ in range(2)]
    model, by_hand = (lp.convert(m, "fp8_wang2018") for m in models)
    first, other = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, by_hand))
    options = {"use_cpu": True, "report_to": [], "max_steps": 3, "save_strategy": "no"}
    options |= {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "bf16": True}
    arguments = transformers.TrainingArguments(str(tmp_path), **options)
    # One row, so that no order of rows matters.
    rows = [{key: x[0] for key, x in batch.items()}]
    transformers.Trainer(model, arguments, train_dataset=rows, optimizers=(first, None)).train()
    row = {key: x[:1] for key, x in batch.items()}
    for _ in range(3):
        other.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = by_hand(**row).loss
        loss.backward()
        other.step()
    for p, q in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert p.dtype == torch.bfloat16
        assert_bit_equal(p, q)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_with_recipes_is_loaded_in_16_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    model = saved(tmp_path).to(dtype)
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype)
    assert loaded(**BATCH).logits.dtype == dtype
    assert_bit_equal(loaded(**BATCH).logits, model(**BATCH).logits)


def test_where_the_method_is_unknown_transformers_gives_plain_layers(tmp_path, monkeypatch):
    saved(tmp_path, policy="fp8_wang2018")
    forget(monkeypatch)
    warnings: list[str] = []
    monkeypatch.setattr(auto.logger, "warning", warnings.append)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not any(isinstance(m, lp.nn.Linear) or hasattr(m, "recipe") for m in loaded.modules())
    assert [text[:43] for text in warnings] == ["Unknown quantization type, got lpkernels - "]


def test_other_policies_are_refused(tmp_path: Path) -> None:
    model = saved(tmp_path)
    with pytest.raises(ValueError, match="convert: the key 'transformer' fits the name of no mod"):
        transformers.GPT2Model.from_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    for entries, match in (
        ({"schema": 9}, r"config\.json: quantization_config: expected schema 2, got 9"),
        ({"rules": [{"layers": [{"name": "os:getcwd"}], "recipe": {}}]}, "fits the name of no"),
    ):
        config = json.loads(text)
        config["quantization_config"]["policy"] |= entries
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=match):
            type(model).from_pretrained(tmp_path)


def test_other_models_are_not_remembered() -> None:
    with pytest.raises(TypeError, match=r"remember: expected a transformers\.PreTrainedModel, got"):
        integration.remember(lp.convert(nn.Linear(2, 2), "fp8_wang2018"))
    model = ARCHITECTURES["gpt2-sdpa"].model()
    with pytest.raises(ValueError, match="the policy of a GPT2LMHeadModel: it has no converted"):
        integration.remember(model)
    model = lp.convert(model, "fp8_wang2018")
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(ValueError, match="remember: the model is quantised already, by bitsandb"):
        integration.remember(model)

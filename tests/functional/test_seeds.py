"""Where draws come from: generators, seed_from, the roles of a call, and nothing where nothing is
stochastic."""

import re
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from lpkernels.functional.seeds import derived_seed, seed_for
from lpkernels.rng import Role, derive_seed
from tests.compare import assert_bit_equal
from tests.support.autograd import alike, gradients, signed

EDGES = [0, 1, -1, 2**62 + 12345, -(2**63), 2**63 - 1]


def unsigned(seed: torch.Tensor) -> int:
    return int(seed) % 2**64


def test_seed_for_draws_nothing_where_nothing_is_stochastic_or_a_seed_is_given():
    state = torch.get_rng_state()
    assert seed_for(False, None) is None
    assert seed_for(False, torch.Generator()) is None
    seed = torch.tensor(7)
    assert seed_for(True, seed) is seed
    assert torch.equal(torch.get_rng_state(), state)


def test_seed_for_follows_manual_seed():
    seeds = []
    for start in (1, 1, 2):
        torch.manual_seed(start)
        seed = seed_for(True, None)
        assert (seed.dtype, seed.shape, seed.device.type) == (torch.int64, (), "cpu")
        seeds.append(int(seed))
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize("start", EDGES)
def test_seed_from_derives_the_seed_of_each_call(start):
    with lp.seed_from(torch.tensor(start)):
        seeds = [unsigned(seed_for(True, None)) for _ in range(5)]
    assert seeds == [derive_seed(start % 2**64, call) for call in range(1, 6)]


@pytest.mark.parametrize("key", [1, 15, 2**32 + 7, 2**62])
def test_derived_seed_is_that_of_the_generator(key):
    seeds = derived_seed(torch.tensor(EDGES), torch.tensor(key))
    assert [unsigned(seed) for seed in seeds] == [derive_seed(s % 2**64, key) for s in EDGES]
    assert_bit_equal(derived_seed(torch.tensor(EDGES), key), seeds)


def test_seed_from_leaves_the_default_generator_alone_and_ends():
    state = torch.get_rng_state()
    with lp.seed_from(torch.tensor(1)):
        lp.quantize(torch.rand(3, generator=torch.Generator()), "e5m2:stochastic")
    assert torch.equal(torch.get_rng_state(), state)
    seed_for(True, None)
    assert not torch.equal(torch.get_rng_state(), state)


def test_seed_from_nests_and_counts_no_call_that_draws_nothing_or_has_a_generator():
    with lp.seed_from(torch.tensor(1)):
        seed_for(False, None)
        seed_for(True, torch.tensor(5))
        assert unsigned(seed_for(True, None)) == derive_seed(1, 1)
    with lp.seed_from(torch.tensor(1)):
        seed_for(True, None)
        with pytest.raises(KeyError), lp.seed_from(torch.tensor(2)):
            assert unsigned(seed_for(True, None)) == derive_seed(2, 1)
            raise KeyError
        assert unsigned(seed_for(True, None)) == derive_seed(1, 2)


def test_seed_from_belongs_to_its_thread():
    seen = []
    torch.manual_seed(0)
    expected = int(seed_for(True, None))
    torch.manual_seed(0)
    with lp.seed_from(torch.tensor(1)):
        thread = threading.Thread(target=lambda: seen.append(int(seed_for(True, None))))
        thread.start()
        thread.join()
    assert seen == [expected]


def test_seed_from_reads_the_tensor_at_each_call():
    # A captured CUDA graph relies on this: torch computes the seed from the tensor.
    source = torch.tensor(1)
    with lp.seed_from(source):
        seed_for(True, None)
        source.fill_(9)
        assert unsigned(seed_for(True, None)) == derive_seed(9, 2)


def test_seed_from_inside_a_checkpoint_draws_the_same_again():
    def block(x):
        with lp.seed_from(torch.tensor(3)):
            return lp.quantize(x * x, "e5m2:stochastic").square()

    x = torch.rand(64, requires_grad=True)
    functions = (block, partial(checkpoint, block, use_reentrant=False))
    alike(functions, lambda run: gradients(run(x), x))


def test_roles_are_numbered_as_in_the_contract():
    page = Path(__file__).parents[2] / "docs" / "contract.md"
    (line,) = re.findall(r"^- Roles: .*?\n(?=- )", page.read_text(), re.MULTILINE | re.DOTALL)
    numbers = {name: int(number) for number, name in re.findall(r"(\d+) `(\w+)`", line)}
    assert numbers == {role.name.lower(): role for role in Role if role}


def test_a_running_range_has_a_seed_of_its_own():
    x, w = torch.rand(4, 3), torch.rand(2, 3)
    recipe = lp.Recipe(
        input="affine4:stochastic", weight="e4m2:stochastic", input_range=lp.RunningRange(0.9)
    )
    layer = lp.nn.Linear(3, 2, bias=False, recipe=recipe)
    layer.weight.data.copy_(w)
    with lp.seed_from(torch.tensor(3)):
        got = layer(x)
    of_input, of_layer = (derive_seed(3, call) for call in (1, 2))
    generator = signed(derive_seed(of_input, Role.INPUT))
    xq = lp.quantize(x, "affine4", "stochastic", generator=generator)
    rest = lp.Recipe(weight="e4m2:stochastic")
    want = lp.functional.linear(xq, w, recipe=rest, generator=signed(of_layer))
    assert_bit_equal(got.detach(), want)

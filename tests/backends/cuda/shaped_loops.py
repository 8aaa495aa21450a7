"""The loops of the kernels with tiles that are not square, found in machine code as in
`product_loops`: the cost of a product in each shape, and of a chunk's end."""

from typing import NamedTuple

from tests.backends.cuda.product_loops import CEILINGS, flag, made
from tests.support.sass import Function, Kernels, Loop, fewest, loops, stretches, target_of

SHAPES = (
    (128, 64), (64, 128), (128, 32), (32, 128), (128, 16), (16, 128), (512, 1), (1, 32),
)  # fmt: skip
# The number of layouts a kernel has: 2 are operands packed side by side and operands found by
# tables, 1 is tables alone.
RULES = {
    "two steps": 2, "two steps, watched": 2, "split": 2, "split, watched": 2, "floor": 2,
    "floor, watched": 2, "float32": 2,
    "odd, two steps": 1, "odd, split": 1, "odd, floor": 1, "double, split": 1, "double, floor": 1,
}  # fmt: skip


class Counted(NamedTuple):
    """Instructions of a thread: for a product, for a sum that ends a chunk in float32 (closed), and
    for a sum that waits in memory (kept). loop is the loop that makes the products, without the
    code that ends a chunk."""

    product: float
    closed: float
    kept: float
    loop: Loop


def is_direct(shape: tuple[int, int]) -> bool:
    """Whether the tile is one row or column: its elements pass by shared memory."""
    return 1 in shape


def shaped_kernel_of(kernels: Kernels, rule: str, shape: tuple[int, int], tables: bool) -> Function:
    tile = "DirectTile" if is_direct(shape) else "ShapedTile"
    made_by = CEILINGS[rule].tile.removeprefix("CertifiedTile<")
    return made(kernels, f"{tile}<{made_by}, {flag(tables)}, {shape[0]}, {shape[1]}>")


def counted(function: Function, shape: tuple[int, int]) -> Counted:
    if is_direct(shape):
        return _direct(function, shape)
    main = max(loops(function), key=lambda loop: loop.count("FFMA", "DFMA"))
    stores = [i for i in range(main.first, main.last) if function.code[i].name.startswith("STG")]
    # The code that most stages jump over.
    first, behind = next(
        (index, to)
        for index in range(main.first, stores[0])
        if (to := target_of(function, index)) is not None and stores[-1] < to <= main.last
    )
    sums = 32
    halfway = [i for i in range(first, behind) if function.code[i].name.startswith("LOP3.LUT.PAND")]
    closed = fewest(function, first + 1, behind, halfway[7::8])
    kept = fewest(function, first + 1, behind, [stores[-1]])
    body = [*function.code[main.first : first + 1], *function.code[behind : main.last + 1]]
    stage = Loop(main.first, main.last, body)
    return Counted(len(body) / (8 * sums), closed / sums, kept / sums, stage)


def _direct(function: Function, shape: tuple[int, int]) -> Counted:
    sums = 4 if shape == (512, 1) else 1
    at_once = 4 if sums > 1 else 8
    found = loops(function)
    # The loops over steps differ in how steps are looked up; this is the longest of those that take
    # several steps.
    steps = max(found, key=lambda loop: loop.count("FFMA", "DFMA"))
    around = [i for i in found if i.first < steps.first and steps.last < i.last]
    stage = min(around, key=lambda loop: loop.last - loop.first)

    def way(through: list[int]) -> int | None:
        try:
            return fewest(function, steps.last + 1, stage.last, through)
        except ValueError:
            return None

    # The splitting of each sum is straight code that holds the test whether the sum may be split.
    splits, at = [], 0
    for stretch in stretches(function):
        names = [i.name.split(".")[0] for i in stretch]
        if names.count("FADD") >= 2 and "FSETP" in names and way([at]) is not None:
            splits.append(at)
        at += len(stretch)
    stores = [
        index
        for index, i in enumerate(function.code)
        if i.name.startswith("STG") and way([index]) is not None
    ]
    assert len(splits) == len(stores) == sums
    plain, closed, kept = way([]), way(splits), way(stores)
    assert plain is not None and closed is not None and kept is not None
    return Counted(
        len(steps.body) / (sums * at_once), (closed - plain) / sums, (kept - plain) / sums, steps
    )


def layouts(rule: str) -> tuple[bool, ...]:
    """Whether elements are looked up, for each layout that the kernel has."""
    return (False, True)[-RULES[rule] :]


def shaped_ceiling(rule: str, shape: tuple[int, int]) -> float:
    """The most instructions of a product, packed: for the rule, and beside it for the reads of a
    stage, which fewer products share in smaller tiles, or for the reads of every element. Doubles
    take more reads, and conversions."""
    more = {64: 0.3, 32: 0.45, 16: 0.65, 1: 6.5 if shape == (512, 1) else 11.5}[min(shape)]
    if in_double(rule):
        more += 4.0 if is_direct(shape) else 0.15
    # Of a single instruction, what it takes to go through a stage is a larger share.
    return CEILINGS[rule].most + more + (0.07 if rule == "float32" else 0.0)


def in_double(rule: str) -> bool:
    return rule.startswith("double")

"""A processor is asked for in csrc/cpu/isa and in csrc/cpu/lanes, and nowhere else."""

import re

from tests.project.lines import ROOT

#: Names that compilers and the build define for a processor or its instructions.
PROCESSOR = re.compile(
    r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*\b("
    r"LPK_(?:X86|AARCH64|NEON|AVX)\w*|__(?:x86_64|amd64|i386|aarch64|arm|ARM)\w*"
    r"|__(?:SSE|AVX|FMA|F16C|BMI)\w*|_M_(?:X64|ARM64))",
    re.MULTILINE,
)
#: Instructions of one processor: rules are written in the vocabulary of csrc/cpu/lanes.
ROOMS = ("csrc/cpu/lanes/", "csrc/cpu/isa/")
#: Tests may stand in for a processor, and CUDA's code has its own.
LEFT_OUT = ("csrc/tests/", "csrc/fuzz/", "csrc/cuda/")


def asked(text: str) -> list[str]:
    return [str(found) for found in PROCESSOR.findall(text)]


def test_a_processor_is_asked_for_in_two_rooms_alone():
    files = [p for end in ("h", "cpp", "cu") for p in (ROOT / "csrc").rglob(f"*.{end}")]
    found = {str(path.relative_to(ROOT)): asked(path.read_text()) for path in files}
    wrong = {
        name: names
        for name, names in found.items()
        if names and not name.startswith(ROOMS + LEFT_OUT)
    }
    assert not wrong, f"move what depends on a processor to {' or '.join(ROOMS)}: {wrong}"
    assert {name.split("/")[2] for name, names in found.items() if names} >= {"lanes", "isa"}

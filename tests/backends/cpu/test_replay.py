"""The fixed calls of tests/support/replay.py give the bits on record, and the saved inputs of the
fuzzer those of plain loops, on every instruction set."""

import subprocess
import sys
from pathlib import Path

import pytest

import lpkernels as lp
from tests.support import replay
from tests.support.processor import Isas

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / str(sys.implementation.cache_tag)
PROGRAM = BUILD / "lpk_replay"
NEEDS_PROGRAM = pytest.mark.skipif(
    not PROGRAM.exists(), reason=f"{PROGRAM} is missing; `make test` builds it"
)


def replayed(folder: Path) -> tuple[int, str]:
    """The exit status of lpk_replay, and what it prints."""
    done = subprocess.run([PROGRAM, folder], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_replay_cpu(isas: Isas) -> None:
    listed = replay.calls()
    for isa in isas:
        lines, made = replay.changed(listed)
        assert not lines, "\n".join([f"{len(lines)} calls moved on {isa}:", *lines])
        assert made == len(listed)


@pytest.mark.slow
def test_replay_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPKERNELS_BACKEND", "reference")
    listed = replay.calls()
    lines, made = replay.changed(listed)
    assert not lines, "\n".join(lines)
    assert made == len(listed)


@NEEDS_PROGRAM
def test_replay_without_python(isas: Isas, tmp_path: Path) -> None:
    listed = replay.calls()[::3]
    assert replay.record(listed, tmp_path) == len(listed)
    for isa in isas:
        status, said = replayed(tmp_path)
        assert status == 0, said
        assert f"kernels: {isa}\n" in said and f" of {len(listed)} lines, 0 differ\n" in said


@NEEDS_PROGRAM
def test_replay_without_python_notices_a_byte(tmp_path: Path) -> None:
    texts = ['lp.quantize(bits(97), "e5m2", "stochastic")', 'lp.quantize(bits(97), "e4m3fn")']
    listed = [replay.Call(replay.run(text), text) for text in texts]
    replay.record(listed, tmp_path)
    file = tmp_path / "calls.bin"
    right = file.read_bytes()
    assert replayed(tmp_path)[1].endswith(" calls of 2 lines, 0 differ\n")
    result = lp.quantize(replay.bits(97), "e4m3fn").numpy().tobytes()
    flipped = bytearray(right)
    flipped[right.index(result) + 7] ^= 1
    file.write_bytes(flipped)
    status, said = replayed(tmp_path)
    assert status == 1 and said.endswith(" calls of 2 lines, 1 differ\n")
    assert f", quantize, differs from byte 7 of 388 on in tensor 1: {texts[1]}\n" in said
    file.write_bytes(right[:-1])
    status, said = replayed(tmp_path)
    assert status == 2 and said.endswith(f"{file}: it ends too early\n")


@NEEDS_PROGRAM
def test_saved_inputs_of_the_fuzzer(isas: Isas) -> None:
    command = [BUILD / "lpk_saved", ROOT / "tests" / "data" / "fuzz_inputs.txt"]
    for isa in isas:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"kernels: {isa}\n" in done.stdout and " results compared\n" in done.stdout

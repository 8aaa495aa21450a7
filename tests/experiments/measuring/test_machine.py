"""What a record says about the machine and the checkout."""

import subprocess
from pathlib import Path

from lpkernels.experiments.measuring import machine


def test_commit_is_that_of_the_packages_own_checkout(tmp_path: Path) -> None:
    package = tmp_path / "checkout" / "package"
    package.mkdir(parents=True)
    assert machine.commit(package) is None

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(
            ["git", "-C", str(package.parent), *who, *arguments], check=True, capture_output=True
        )

    git("init")
    (package / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    clean = machine.commit(package)
    assert clean is not None and len(clean) == 40
    (package / "file").write_text("2")
    assert machine.commit(package) == clean + "+"
    inner = package / "site-packages" / "package"
    inner.mkdir(parents=True)
    assert machine.commit(inner) is None


def test_device_name_and_cuda_status_are_not_empty() -> None:
    assert machine.device_name("cpu")
    assert machine.cuda_status()

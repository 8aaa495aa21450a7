"""The tests that the adapters of GPUs share, of the triton backend."""

from tests.backends.gpu_tests import *  # noqa: F403

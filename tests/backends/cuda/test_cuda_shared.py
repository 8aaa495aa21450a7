"""The tests that the adapters of GPUs share, of the cuda adapter on the host and on a device."""

from tests.backends.gpu_tests import *  # noqa: F403

"""The tests that all backends share, of the cuda backend."""

from tests.backends.shared_products import *  # noqa: F403

"""The tests that all backends share, of the cpu backend."""

from tests.backends.shared_elements import *  # noqa: F403
from tests.backends.shared_products import *  # noqa: F403

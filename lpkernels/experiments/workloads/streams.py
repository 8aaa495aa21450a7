"""Seeds of the streams that a run draws from, each by its name."""

import hashlib


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream called `names` of a run; BLAKE2 keeps neighbours apart."""
    text = "/".join(map(str, (seed, *names))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

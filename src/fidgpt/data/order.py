"""The order of sequences: keyed permutations."""

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
# With halves of 1 and 2 bits, permutations of five sequences were visibly uneven.
_MIN_BITS = 6
# Odd multipliers with well-mixed bits (the golden ratio and the square root of 3, times 2**64).
_MULTIPLY_FIRST = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_SECOND = np.uint64(0xBB67AE8584CAA73B)
_HALF = np.uint64(32)


def derive_key(seed: int, *purpose: str | int) -> bytes:
    """Return 48 bytes derived from the seed and every word of the purpose."""
    words = "\x1f".join([str(seed), *(f"{type(word).__name__}:{word}" for word in purpose)])
    return hashlib.blake2b(words.encode(), digest_size=8 * _ROUNDS, person=b"fidgpt-data").digest()


def permute(positions: NDArray[np.uint64], *, size: int, key: bytes) -> NDArray[np.uint64]:
    """Return the images of `positions`, all below `size`, under the permutation of a key.

    A Feistel network on the smallest power of two from `size` up, with cycle walking: it is applied
    until the value falls below `size` (Black and Rogaway 2002, "Ciphers with Arbitrary Finite
    Domains"). That domain is less than twice `size`, except for tiny sizes, so the walk is short.
    """
    if size <= 1:
        return np.zeros_like(positions)
    bits = max(_MIN_BITS, (size - 1).bit_length())
    round_keys = np.frombuffer(key, dtype="<u8", count=_ROUNDS)
    result = _feistel(positions, bits=bits, round_keys=round_keys)
    outside = np.flatnonzero(result >= size)
    while outside.size:
        result[outside] = _feistel(result[outside], bits=bits, round_keys=round_keys)
        outside = outside[result[outside] >= size]
    return result


def _feistel(
    values: NDArray[np.uint64], *, bits: int, round_keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Permute `bits`-bit numbers: alternately XOR each half with a hash of the other.

    The halves differ by one bit if `bits` is odd.
    """
    low_bits = bits // 2
    high_bits = bits - low_bits
    low = values & np.uint64((1 << low_bits) - 1)
    high = values >> np.uint64(low_bits)
    for number, round_key in enumerate(round_keys):
        if number % 2:
            high = high ^ _hash(low, round_key, bits=high_bits)
        else:
            low = low ^ _hash(high, round_key, bits=low_bits)
    return (high << np.uint64(low_bits)) | low


def _hash(values: NDArray[np.uint64], round_key: np.uint64, *, bits: int) -> NDArray[np.uint64]:
    """Return a hash of `bits` bits: add, multiply, fold, multiply, keep the top bits."""
    mixed = (values + round_key) * _MULTIPLY_FIRST
    mixed ^= mixed >> _HALF
    mixed *= _MULTIPLY_SECOND
    return mixed >> np.uint64(64 - bits)

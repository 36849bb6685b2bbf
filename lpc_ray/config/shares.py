"""Shares as a user writes them: the qualities of the steps-to-quality table, and prefix sizes."""

from fractions import Fraction

from lpc_ray.errors import ConfigError

Threshold = float | str
THRESHOLDS: tuple[Threshold, ...] = (0.25, 0.50, 0.60)


def parse_share(threshold: Threshold) -> Fraction:
    """Exactly what is written: 0.6 is 3/5, and so is `60%`. Raises: ConfigError unless it lies above 0 and at most at 1."""
    text = str(threshold).replace(" ", "")
    try:
        value = Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"threshold: got {threshold!r}, wanted a fraction such as 0.5, 50% or 12/19") from error
    if not 0 < value <= 1:
        raise ConfigError(f"threshold: got {threshold!r}, wanted a fraction above 0 and at most 1")
    return value


def size_in_tokens(size: int | float, source_tokens: int) -> int:
    """The prefix length that `size` stands for: tokens when from 1 on, else that fraction of the source's, rounded down.

    Exactly what is written, so 0.29 of 100 is 29. The published budgets come out: half of 2,702 is 1,351.
    """
    return int(size) if size >= 1 else int(Fraction(str(size)) * source_tokens)

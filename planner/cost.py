"""Money: from an hourly list price to a month's bill and to the price of a million tokens.

A bill follows the calendar: February 2027 has 672 hours, not the 730 of a calculator
(https://github.com/ubicloud/ubicloud/pull/501). Hours are UTC, so no month gains or loses one to summer time. A server
is paid for every hour of the month, idle or not. Amounts are exact decimals; a total is rounded once, half up, to the
currency's minor unit, and a unit price is given to nine places.
"""

from __future__ import annotations

import calendar
import math
import re
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal

from hardware_profiles.errors import InputError
from hardware_profiles.prices import MINOR_UNITS, Price

__all__ = [
    "fleet_cost_per_hour",
    "hours_of_month",
    "monthly_cost",
    "monthly_cost_usd",
    "months_from",
    "per_million_tokens",
]

EXACT = Context(prec=60)
"Wide enough that products of prices, servers and hours are never rounded on the way."
UNIT_PLACES = Decimal("1E-9")


def hours_of_month(month: str) -> int:
    """UTC hours of a calendar month written ``YYYY-MM``: 672 to 744."""
    year, number = _year_and_month(month)
    return 24 * calendar.monthrange(year, number)[1]


def months_from(start: str, count: int) -> tuple[str, ...]:
    """``count`` months from ``start`` on, each as ``YYYY-MM``."""
    year, number = _year_and_month(start)
    first = 12 * year + number - 1
    months = [divmod(index, 12) for index in range(first, first + count)]
    return tuple(f"{year:04d}-{zero_based + 1:02d}" for year, zero_based in months)


def fleet_cost_per_hour(price: Price, servers: int) -> Decimal:
    """Cost of ``servers`` servers for one hour in the price's currency, exact."""
    if isinstance(servers, bool) or not isinstance(servers, int) or servers < 0:
        raise ValueError(f"{servers!r} servers; a whole number, zero or more, is needed")
    return EXACT.multiply(price.per_server_hour, Decimal(servers))


def monthly_cost(price: Price, servers: int, month: str) -> Decimal:
    """Cost of ``servers`` servers for every hour of ``month``, rounded once to the price currency's minor unit."""
    exact = EXACT.multiply(fleet_cost_per_hour(price, servers), Decimal(hours_of_month(month)))
    return exact.quantize(Decimal(1).scaleb(-MINOR_UNITS[price.currency]), rounding=ROUND_HALF_UP, context=EXACT)


def monthly_cost_usd(price: Price, servers: int, month: str) -> Decimal:
    """`monthly_cost` of a price in US dollars; there are no exchange rates here."""
    if price.currency != "USD":
        raise InputError(f"sku {price.sku} is priced in {price.currency}; cost.currency must be {price.currency} too")
    return monthly_cost(price, servers, month)


def per_million_tokens(cost_per_hour: Decimal, tokens_per_s: float) -> Decimal | None:
    """Cost of a million tokens at a steady rate, to nine places; None when no tokens are made."""
    if not math.isfinite(tokens_per_s) or tokens_per_s < 0:
        raise ValueError(f"{tokens_per_s} tokens/s; a finite rate, zero or more, is needed")
    if tokens_per_s == 0:
        return None
    # repr() is the shortest text that means this float, so 40.1 is 40.1 and not its binary expansion.
    tokens_per_hour = EXACT.multiply(Decimal(repr(float(tokens_per_s))), Decimal(3600))
    unit = EXACT.divide(EXACT.multiply(cost_per_hour, Decimal(1_000_000)), tokens_per_hour)
    return unit.quantize(UNIT_PLACES, rounding=ROUND_HALF_EVEN, context=EXACT)


def _year_and_month(month: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{4})-([0-9]{2})", month)
    if match is None or not 1 <= int(match[2]) <= 12 or int(match[1]) == 0:
        raise InputError(f"{month!r} is no month; write YYYY-MM, e.g. 2027-01")
    return int(match[1]), int(match[2])

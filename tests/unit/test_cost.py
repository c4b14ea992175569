"""Bills follow the calendar in UTC and are rounded once."""

from __future__ import annotations

import calendar
import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles.errors import InputError
from hardware_profiles.prices import Price, load_price_book
from planner.cost import (
    fleet_cost_per_hour,
    hours_of_month,
    monthly_cost,
    monthly_cost_usd,
    months_from,
    per_million_tokens,
)

CASES = Path(__file__).parent / "cases"


def price(folder: Path, amount: str, *, per: str = "gpu_hour", currency: str = "USD") -> Price:
    path = folder / "book.yaml"
    path.write_text(
        f"currency: {currency}\nas_of: 2026-12-01\nprices:\n"
        f'  - {{sku: it, gpu: mi355x, gpus_per_server: 8, term: on_demand, per: {per}, price: "{amount}",\n'
        "     source: list}\n",
        encoding="utf-8",
    )
    return load_price_book(path).find("mi355x", "on_demand")


@pytest.mark.parametrize(
    ("month", "hours", "usd"),
    [
        ("2027-02", 672, "27847.68"),
        ("2026-11", 720, "29836.80"),
        ("2027-01", 744, "30831.36"),
        ("2028-02", 696, "28842.24"),
        ("2027-03", 744, "30831.36"),  # 743 local hours where summer time begins
    ],
)
def test_a_month_has_its_own_hours_to_the_cent(tmp_path: Path, month: str, hours: int, usd: str) -> None:
    """Case F01, https://github.com/ubicloud/ubicloud/pull/501: 2 servers x 8 GPUs at 2.59; 730 h would be 30,251.20."""
    assert hours_of_month(month) == hours
    bill = monthly_cost_usd(price(tmp_path, "2.59"), 2, month)
    assert bill == Decimal(usd)
    assert str(bill) == usd
    assert bill != Decimal("30251.20")


@pytest.mark.parametrize("sku", ["h100x8", "h100x8-machine"])
def test_per_gpu_and_per_server_entries_give_the_same_bill(sku: str) -> None:
    """Case F02, https://github.com/opencost/opencost/pull/2523."""
    entry = load_price_book(CASES / "F02.yaml").find("h100", "on_demand", sku=sku)
    assert monthly_cost_usd(entry, 1, "2027-01") == Decimal("17796.48")


@given(st.integers(1, 9999), st.integers(1, 12))
def test_every_month_of_every_year_is_whole_days(year: int, month: int) -> None:
    assert hours_of_month(f"{year:04d}-{month:02d}") == 24 * calendar.monthrange(year, month)[1]


def test_twelve_months_are_the_hours_of_the_year() -> None:
    assert months_from("2026-11", 4) == ("2026-11", "2026-12", "2027-01", "2027-02")
    assert months_from("2027-01", 0) == ()
    assert sum(hours_of_month(month) for month in months_from("2027-01", 12)) == 8760
    assert sum(hours_of_month(month) for month in months_from("2027-03", 12)) == 8784


@pytest.mark.parametrize(
    "month", ["2027-13", "2027-00", "0000-01", "2027-1", "27-01", "2027-01-01", "", "2027/01", "２０２７-01"]
)
def test_what_is_no_month_is_refused(month: str) -> None:
    with pytest.raises(InputError, match="write YYYY-MM"):
        hours_of_month(month)


def test_a_total_is_rounded_once_half_up(tmp_path: Path) -> None:
    """0.0000078125 x 8 GPUs x 720 h = 0.045 exactly: half up 0.05; rounded per hour first it would be 0."""
    assert monthly_cost_usd(price(tmp_path, "0.0000078125"), 1, "2026-11") == Decimal("0.05")
    assert monthly_cost_usd(price(tmp_path, "20.695123", per="server_hour"), 7, "2027-01") == Decimal("107780.20")


def test_yen_have_no_cents_and_are_no_dollars(tmp_path: Path) -> None:
    yen = price(tmp_path, "300.55", currency="JPY")
    assert str(monthly_cost(yen, 1, "2026-11")) == "1731168"
    with pytest.raises(InputError, match=r"priced in JPY; cost.currency must be JPY too"):
        monthly_cost_usd(yen, 1, "2026-11")


def test_no_servers_cost_nothing_and_a_fraction_of_one_is_a_mistake(tmp_path: Path) -> None:
    entry = price(tmp_path, "2.59")
    assert monthly_cost_usd(entry, 0, "2027-01") == Decimal("0.00")
    assert fleet_cost_per_hour(entry, 3) == Decimal("62.16")
    for servers in (-1, 1.5, True):
        with pytest.raises(ValueError, match="whole number"):
            fleet_cost_per_hour(entry, servers)  # type: ignore[arg-type]


def test_a_million_tokens_are_priced_to_nine_places() -> None:
    assert per_million_tokens(Decimal("20.72"), 1000.0) == Decimal("5.755555556")
    assert per_million_tokens(Decimal("20.72"), 40.1) == (Decimal("20.72") / Decimal("0.14436")).quantize(
        Decimal("1E-9")
    )
    assert per_million_tokens(Decimal("0"), 5.0) == Decimal("0E-9")


def test_no_tokens_have_no_price_and_no_rate_is_a_mistake() -> None:
    assert per_million_tokens(Decimal("20.72"), 0.0) is None
    for rate in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match="finite rate"):
            per_million_tokens(Decimal("20.72"), rate)


@given(st.decimals("0.0001", "99.9999", places=4), st.integers(1, 64), st.integers(1, 12))
def test_the_bill_is_within_half_a_cent_of_the_exact_product(amount: Decimal, servers: int, month: int) -> None:
    entry = Price(
        sku="it",
        provider=None,
        region=None,
        gpu="x",
        node="x",
        gpus_per_server=8,
        term="spot",
        unit="per_gpu_hour",
        price=amount,
        currency="USD",
        date=datetime.date(2026, 12, 1),
        source="s",
        available=True,
        note=None,
    )
    exact = amount * 8 * servers * hours_of_month(f"2027-{month:02d}")
    assert abs(monthly_cost_usd(entry, servers, f"2027-{month:02d}") - exact) <= Decimal("0.005")

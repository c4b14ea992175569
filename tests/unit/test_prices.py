"""Price books: units are stated, sources are dated, and a price is chosen the same way every time."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from hardware_profiles.errors import InputError
from hardware_profiles.node import list_nodes
from hardware_profiles.prices import PriceBook, load_price_book

CASES = Path(__file__).parent / "cases"
ENTRY = """\
  - sku: ours
    gpu: h100
    gpus_per_server: 8
    term: on_demand
    per: gpu_hour
    price: "2.99"
    date: 2026-05-28
    source: provider price page
"""


def book(folder: Path, entries: str = ENTRY, head: str = "currency: USD\n") -> PriceBook:
    path = folder / "book.yaml"
    path.write_text(f"{head}prices:\n{entries}", encoding="utf-8")
    return load_price_book("./book.yaml", relative_to=folder)


def test_one_entry_per_gpu_and_one_per_server_are_the_same_price() -> None:
    """Case F02, https://github.com/opencost/opencost/pull/2523."""
    prices = load_price_book(CASES / "F02.yaml")
    per_gpu = prices.find("h100", "on_demand", sku="h100x8")
    per_server = prices.find("h100", "on_demand", sku="h100x8-machine")
    assert (per_gpu.unit, per_gpu.price) == ("per_gpu_hour", Decimal("2.99"))
    assert (per_server.unit, per_server.price) == ("per_server_hour", Decimal("23.92"))
    assert per_gpu.per_server_hour == per_server.per_server_hour == Decimal("23.92")
    assert per_gpu.date == datetime.date(2026, 5, 28)


@pytest.mark.parametrize(
    ("extra", "accepted"),
    [
        ('price_per_server_hour: "23.92"', True),
        ('price_per_server_hour: "23.93"', True),
        ('price_per_server_hour: "23.94"', False),
        ('price_per_server_hour: "2.99"', False),
        ('price_per_gpu_hour: "2.99"', True),
        ('price_per_gpu_hour: "3.39"', False),
    ],
)
def test_an_entry_with_both_numbers_must_agree_within_a_cent(tmp_path: Path, extra: str, accepted: bool) -> None:
    if accepted:
        assert book(tmp_path, ENTRY + f"    {extra}\n").prices[0].price == Decimal("2.99")
        return
    with pytest.raises(InputError, match=r"disagree by more than 0\.01") as caught:
        book(tmp_path, ENTRY + f"    {extra}\n")
    assert caught.value.line == 11


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("    per: gpu_hour\n", "", "prices[0].per: missing; `prices[0]` needs `per`, e.g. per: gpu_hour"),
        ("per: gpu_hour", "per: hour", "'hour' is not known; allowed: 'gpu_hour' or 'server_hour'"),
        ('price: "2.99"', 'price: "-2.99"', "'-2.99' is not allowed; it must be at least 0"),
        ('price: "2.99"', 'price: "NaN"', "prices[0].price"),
        ('price: "2.99"', "price: .nan", "nan is not allowed; write a finite number"),
        ('price: "2.99"', 'price: "Infinity"', "prices[0].price"),
        ('price: "2.99"', "price: true", "prices[0].price"),
        ('price: "2.99"', "price: '2,99'", "prices[0].price: '2,99' is not allowed"),
        ("    date: 2026-05-28\n", "", "prices[0].date: missing; give the day of the price, or `as_of`"),
        ("date: 2026-05-28", "date: 28.5.2026", "it must be a date as YYYY-MM-DD"),
        ("term: on_demand", "term: on-demand", "did you mean `on_demand`?"),
        ("    source: provider price page\n", "", "`prices[0]` needs `source`"),
        ("gpus_per_server: 8", "gpus_per_server: 0", "0 is not allowed; it must be at least 1"),
    ],
)
def test_a_wrong_entry_is_refused_by_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in ENTRY
    with pytest.raises(InputError) as caught:
        book(tmp_path, ENTRY.replace(old, new))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/book.yaml:")


def test_an_unknown_currency_a_missing_one_and_an_empty_book_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="currency: 'XYZ' is not known; allowed: 'USD'"):
        book(tmp_path, head="currency: XYZ\n")
    with pytest.raises(InputError, match="a price book needs `currency`"):
        book(tmp_path, head="")
    with pytest.raises(InputError, match="at least 1 entry is needed"):
        book(tmp_path, entries="  []\n")


def test_an_sku_names_one_entry(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'ours' names two entries") as caught:
        book(tmp_path, ENTRY + ENTRY)
    assert caught.value.line == 11


def test_a_default_must_name_an_entry_of_its_node_and_term(tmp_path: Path) -> None:
    for default in ("{h100: {on_demand: theirs}}", "{h200: {on_demand: ours}}", "{h100: {spot: ours}}"):
        with pytest.raises(InputError, match=r"default\.h.00\..*: '.*' is no .* entry of node"):
            book(tmp_path, head=f"currency: USD\ndefault: {default}\n")


def test_of_several_entries_the_default_is_taken_and_without_one_the_user_must_choose(tmp_path: Path) -> None:
    two = ENTRY + ENTRY.replace("sku: ours", "sku: theirs")
    with pytest.raises(
        InputError, match="has 2 on_demand prices of node 'h100': ours, theirs; name one under `default"
    ):
        book(tmp_path, two).find("h100", "on_demand")
    chosen = book(tmp_path, two, head="currency: USD\ndefault: {h100: {on_demand: theirs}}\n")
    assert chosen.find("h100", "on_demand").sku == "theirs"
    assert chosen.find("h100", "on_demand", sku="ours").sku == "ours"


def test_what_no_region_offers_is_taken_only_by_name(tmp_path: Path) -> None:
    gone = book(tmp_path, ENTRY + "    available: false\n")
    with pytest.raises(InputError, match="no on_demand price of node 'h100'"):
        gone.find("h100", "on_demand")
    assert not gone.find("h100", "on_demand", sku="ours").available


def test_a_price_listed_after_the_plans_date_is_not_known_yet(tmp_path: Path) -> None:
    prices = book(tmp_path)
    assert prices.find("h100", "on_demand", as_of=datetime.date(2026, 5, 28)).sku == "ours"
    with pytest.raises(InputError, match=r"no on_demand price of node 'h100' in price book book.yaml up to 2026-05-27"):
        prices.find("h100", "on_demand", as_of=datetime.date(2026, 5, 27))


def test_an_unknown_price_names_node_term_book_and_cure(tmp_path: Path) -> None:
    prices = book(tmp_path)
    with pytest.raises(InputError) as caught:
        prices.find("h100", "spot")
    message = str(caught.value)
    assert "no spot price of node 'h100' in price book book.yaml" in message
    assert "use another term (on_demand), or add an entry with node: h100" in message
    with pytest.raises(InputError, match=r"no on_demand price of node 'mi355x' in price book book\.yaml; add an entry"):
        prices.find("mi355x", "on_demand")
    with pytest.raises(InputError, match="sku 'other' is no on_demand price of node 'h100'"):
        prices.find("h100", "on_demand", sku="other")


def test_an_entry_may_have_its_own_currency_node_and_date(tmp_path: Path) -> None:
    text = ENTRY.replace("    date: 2026-05-28\n", "    node: our-h100\n    currency: JPY\n")
    price = book(tmp_path, text, head="currency: USD\nas_of: 2026-06-01\n").find("our-h100", "on_demand")
    assert (price.currency, price.date) == ("JPY", datetime.date(2026, 6, 1))


def test_the_shipped_book_prices_every_shipped_node_on_demand_from_a_dated_public_list() -> None:
    prices = load_price_book("example.yaml")
    assert load_price_book("example") == prices
    for node in list_nodes():
        price = prices.find(node, "on_demand", as_of=datetime.date(2026, 12, 1))
        assert price.currency == "USD"
        assert price.available
        assert price.price > 0
    for price in prices.prices:
        assert price.provider is not None
        assert price.node in list_nodes()
        assert datetime.date(2026, 5, 1) < price.date < datetime.date(2026, 12, 1)
        assert "semianalysis" not in price.source.lower()
    assert prices.find("mi355x", "on_demand").per_server_hour == Decimal("20.72")
    assert prices.find("mi355x", "spot").per_server_hour == Decimal("23.76")

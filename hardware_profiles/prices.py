"""A price book holds dated list prices, each for one GPU-hour or one server-hour, and says which.

Confusing the two units multiplies a bill by eight (https://github.com/opencost/opencost/pull/2523), so no entry goes
without ``per``; an entry that states both numbers is refused if they disagree by more than a cent. Amounts are decimals
from the file to the total. A book may name a default entry per node and term; where several entries would do and none
is the default, the user must choose.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from hardware_profiles.errors import InputError
from hardware_profiles.shipped import find_file
from hardware_profiles.strict_yaml import Document, load_model, load_yaml

__all__ = ["MINOR_UNITS", "Price", "PriceBook", "Term", "load_price_book"]

Term: TypeAlias = Literal["on_demand", "spot", "reserved", "reserved_12_months", "reserved_36_months"]
Currency: TypeAlias = Literal["USD", "EUR", "GBP", "CHF", "CAD", "AUD", "INR", "CNY", "JPY", "KRW"]

MINOR_UNITS: Mapping[str, int] = {
    **dict.fromkeys(("USD", "EUR", "GBP", "CHF", "CAD", "AUD", "INR", "CNY"), 2),
    **dict.fromkeys(("JPY", "KRW"), 0),
}
"Decimal places of each known currency (ISO 4217)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One list price."""

    sku: str
    "Unique name of the entry in its book."
    provider: str | None
    "Who sells it."
    region: str | None
    "Where it is offered; None = the source does not say."
    gpu: str
    "GPU type."
    node: str
    "Node type of goodfleet it pays for."
    gpus_per_server: int
    "GPUs in one server."
    term: Term
    "Commitment; ``reserved`` where the source does not say for how long."
    unit: Literal["per_gpu_hour", "per_server_hour"]
    "What one ``price`` buys."
    price: Decimal
    "The listed number, in ``currency``."
    currency: Currency
    "ISO 4217 code."
    date: datetime.date
    "The day the price was listed."
    source: str
    "Where it was listed."
    available: bool
    "Whether the provider offered it in some region that day."
    note: str | None
    "Anything finance should know."

    @property
    def per_server_hour(self) -> Decimal:
        """Price of one server for one hour, exact."""
        return self.price * self.gpus_per_server if self.unit == "per_gpu_hour" else self.price


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Dated prices with a default choice per node and term."""

    name: str
    "File name, as messages and reports call it."
    currency: Currency
    "The book's currency; an entry may differ."
    prices: tuple[Price, ...]
    "All entries, in the file's order."
    default: Mapping[str, Mapping[str, str]]
    "SKU by node and term."

    def find(self, node: str, term: str, *, sku: str | None = None, as_of: datetime.date | None = None) -> Price:
        """The price of a node: the entry named by ``sku``, else the book's default, else the only one on offer.

        Entries dated after ``as_of`` are not known yet and are passed over; an entry no region offered is only taken by
        name.
        """
        known = [price for price in self.prices if as_of is None or price.date <= as_of]
        fitting = [price for price in known if price.node == node and price.term == term]
        wanted = sku or self.default.get(node, {}).get(term)
        if wanted is not None:
            for price in fitting:
                if price.sku == wanted:
                    return price
            whose = "is" if sku else "(the book's default) is"
            when = "" if as_of is None else f" dated up to {as_of}"
            problem = f"sku {wanted!r} {whose} no {term} price of node {node!r} in price book {self.name}{when}"
            raise InputError(f"{problem}; {self._offer(node, known)}")
        on_offer = [price for price in fitting if price.available]
        if len(on_offer) == 1:
            return on_offer[0]
        if on_offer:
            names = ", ".join(price.sku for price in on_offer)
            problem = f"price book {self.name} has {len(on_offer)} {term} prices of node {node!r}: {names}"
            raise InputError(f"{problem}; name one under `default: {{{node}: {{{term}: <sku>}}}}` in the book")
        when = "" if as_of is None else f" up to {as_of}"
        problem = f"no {term} price of node {node!r} in price book {self.name}{when}"
        raise InputError(f"{problem}; {self._offer(node, known)}")

    def _offer(self, node: str, known: list[Price]) -> str:
        terms = sorted({price.term for price in known if price.node == node})
        other = f"use another term ({', '.join(terms)}), or " if terms else ""
        return f"{other}add an entry with node: {node} to the book, or use a book that has one"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sku: str = Field(min_length=1)
    provider: str | None = None
    region: str | None = None
    gpu: str = Field(min_length=1)
    node: str | None = None
    gpus_per_server: int = Field(ge=1, le=1024, examples=[8])
    term: Term
    per: Literal["gpu_hour", "server_hour"] = Field(examples=["gpu_hour"])
    price: Decimal = Field(ge=0, max_digits=20, examples=['"2.59"'])
    price_per_gpu_hour: Decimal | None = Field(default=None, ge=0, max_digits=20)
    price_per_server_hour: Decimal | None = Field(default=None, ge=0, max_digits=20)
    currency: Currency | None = None
    date: datetime.date | None = None
    source: str = Field(min_length=1)
    available: bool = True
    note: str | None = None


class _Book(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    currency: Currency
    as_of: datetime.date | None = None
    default: dict[str, dict[Term, str]] = {}
    prices: tuple[_Entry, ...] = Field(min_length=1)


def load_price_book(name_or_path: str | Path, *, relative_to: Path | None = None) -> PriceBook:
    """A shipped book by name (``example.yaml``), or a file by path; a relative path is read against ``relative_to``."""
    path = find_file(name_or_path, folder="prices", relative_to=relative_to, what="price book")
    document = load_yaml(path)
    file = load_model(document, _Book, what="a price book")
    prices: dict[str, Price] = {}
    for index, entry in enumerate(file.prices):
        price = _price(entry, file, index, document)
        if price.sku in prices:
            raise _refusal(document, index, "sku", f"{price.sku!r} names two entries; give each its own")
        prices[price.sku] = price
    for node, by_term in file.default.items():
        for term, sku in by_term.items():
            match = prices.get(sku)
            if match is None or match.node != node or match.term != term:
                key_path = ("default", node, term)
                problem = f"{sku!r} is no {term} entry of node {node!r} in this book; name one that is"
                raise InputError(problem, file=str(path), line=document.line(key_path), key=".".join(key_path))
    return PriceBook(
        name=path.name,
        currency=file.currency,
        prices=tuple(prices.values()),
        default={node: {str(term): sku for term, sku in by_term.items()} for node, by_term in file.default.items()},
    )


def _price(entry: _Entry, book: _Book, index: int, document: Document) -> Price:
    if (date := entry.date or book.as_of) is None:
        raise _refusal(document, index, "date", "missing; give the day of the price, or `as_of` for the whole book")
    price = Price(
        sku=entry.sku,
        provider=entry.provider,
        region=entry.region,
        gpu=entry.gpu.lower(),
        node=(entry.node or entry.gpu).lower(),
        gpus_per_server=entry.gpus_per_server,
        term=entry.term,
        unit="per_gpu_hour" if entry.per == "gpu_hour" else "per_server_hour",
        price=entry.price,
        currency=entry.currency or book.currency,
        date=date,
        source=entry.source,
        available=entry.available,
        note=entry.note,
    )
    server = price.per_server_hour
    for key, stated, by_gpu in (
        ("price_per_gpu_hour", entry.price_per_gpu_hour, entry.gpus_per_server),
        ("price_per_server_hour", entry.price_per_server_hour, 1),
    ):
        if stated is not None and abs(stated * by_gpu - server) > Decimal("0.01"):
            times = f" x {by_gpu} = {stated * by_gpu}" if by_gpu > 1 else ""
            problem = (
                f"{stated}{times} and the price, {server} per server-hour, disagree by more than 0.01; correct one"
            )
            raise _refusal(document, index, key, problem)
    return price


def _refusal(document: Document, index: int, key: str, problem: str) -> InputError:
    line = document.line(("prices", index, key))
    return InputError(problem, file=str(document.path), line=line, key=f"prices[{index}].{key}")

"""Where a fact comes from: each number of a node or a model card names its source, date and how it is known."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["HowKnown", "Source", "SourceEntry"]

HowKnown: TypeAlias = Literal["measured", "vendor", "derived", "assumed", "given"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The provenance of one fact."""

    source: str
    "A link, or a file with its version, in words a reader can follow."
    date: datetime.date | None
    "Date of the source, or the day it was read where it carries none; None for a file the user gave."
    how_known: HowKnown
    "measured on the machine; vendor's statement; derived by arithmetic; assumed; given by the user."
    note: str | None
    "Anything a reader should know before using the number."


class SourceEntry(BaseModel):
    """A `Source` as it is written in a shipped or user file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(min_length=1)
    date: datetime.date | None
    how_known: HowKnown
    note: str | None = None

    def to_source(self) -> Source:
        return Source(source=self.source, date=self.date, how_known=self.how_known, note=self.note)

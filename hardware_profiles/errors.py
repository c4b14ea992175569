"""What a user got wrong, told once: where it stands, what it says, which rule it breaks and what cures it."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(Exception):
    """A mistake in a file, a name or a flag the user gave; the command line prints it and exits 2, without a traceback.

    ``problem`` names the value, the rule and the cure in the user's words. The text is
    ``"{file}:{line}: {key}: {problem}"`` with the parts that are unknown left out.
    """

    def __init__(self, problem: str, *, file: str | None = None, line: int | None = None, key: str | None = None):
        super().__init__(problem)
        self.problem = problem
        self.file = file
        self.line = line
        self.key = key

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place = f"line {self.line}" if self.file is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.problem) if part)

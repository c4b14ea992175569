"""All shipped profiles, fitted anew from the measured rows in the repository: `python -m planner.refit [NAME…]`.

`hardware_profiles/measurements` has one file of rows per profile, named `<node>-<model>-<precision>`, then `-<engine>`
unless it is upstream vLLM and `-<variant>` unless its replicas are plain. Run in the root of the repository, because a
profile holds the command that made it. Files that end in `-earlier` are fitted to nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hardware_profiles.errors import InputError
from hardware_profiles.shipped import PACKAGE, shipped_names

__all__ = ["ShippedRows", "shipped_rows"]

OTHER_ENGINES = ("vllm_atom", "sglang")
NOT_ROWS = ("-earlier", "-all-reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRows:
    """A file of measured rows, and the profile that is fitted from it."""

    path: Path
    node: str
    model: str
    precision: str
    engine: str
    variant: str

    @property
    def profile(self) -> str:
        """Name of the profile: `<node>/<model>-<precision>-<engine>[-<variant>]`."""
        return "-".join(filter(None, (f"{self.node}/{self.model}", self.precision, self.engine, self.variant)))


def shipped_rows() -> tuple[ShippedRows, ...]:
    """Every file of measured rows that a profile is fitted from."""
    paths = sorted((PACKAGE / "measurements").glob("*.csv"))
    nodes = tuple(f"{node}-" for node in shipped_names("nodes"))
    return tuple(_named(path) for path in paths if path.stem.startswith(nodes) and not path.stem.endswith(NOT_ROWS))


def _named(path: Path) -> ShippedRows:
    node, rest = path.stem.split("-", 1)
    models = [name for name in shipped_names("models") if rest.startswith(f"{name}-")]
    if not models:
        raise InputError("no shipped model card has the model in this file's name", file=str(path))
    model = max(models, key=len)
    precision, *further = rest.removeprefix(f"{model}-").split("-")
    engine = further.pop(0) if further and further[0] in OTHER_ENGINES else "vllm"
    return ShippedRows(path=path, node=node, model=model, precision=precision, engine=engine, variant="-".join(further))


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit each profile whose name matches one of the patterns, all without any; seed 1."""
    parser = argparse.ArgumentParser(prog="python -m planner.refit", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="e.g. 'mi355x/*' or h100/gpt-oss-120b-mxfp4-vllm")
    parser.add_argument("--out", type=Path, default=Path("hardware_profiles/profiles"), help="folder of the profiles")
    given = parser.parse_args(arguments)
    rows = [r for r in shipped_rows() if not given.names or any(fnmatchcase(r.profile, n) for n in given.names)]
    if not rows:
        parser.error(f"no profile is named so; there are: {', '.join(r.profile for r in shipped_rows())}")
    from planner.profile_view import fit_to_file

    for done, each in enumerate(rows, start=1):
        print(f"{done} of {len(rows)}: {each.profile}", flush=True)
        here = Path.cwd()
        fit_to_file(
            [each.path.relative_to(here) if each.path.is_relative_to(here) else each.path],
            node=each.node,
            model=each.model,
            tp=None,
            precision=each.precision,
            engine=each.engine,
            variant=each.variant,
            all_reduce=None,
            out=given.out / f"{each.profile}.yaml",
            seed=1,
            leave_out=True,
        )


if __name__ == "__main__":
    main()

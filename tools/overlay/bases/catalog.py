"""The bases that this project pins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Optional

from packaging.version import InvalidVersion, Version

from overlay.errors import UsageError
from overlay.runtime import TEST_PACKAGES

_FINGERPRINTS = Path(__file__).parent / "fingerprints"


@dataclass(frozen=True)
class Runtime:
    """The installed torch that goes with a base: which Pythons run it, and what else it needs."""

    pythons: tuple[str, ...] = ()
    """Supported versions, best first; none stands for any."""

    last_resorts: tuple[str, ...] = ()
    """Versions to fall back on where none of ``pythons`` is found."""

    packages: tuple[str, ...] = TEST_PACKAGES


@dataclass(frozen=True)
class Base:
    """A PyTorch version: where its source comes from and what proves it."""

    name: str
    version: str
    about: str
    revision: str
    """What a clone fetches: a tag's full name, or a commit id that may end in ``~1``."""

    fingerprint: Optional[Path] = None
    """The file that lists the hashes of its Python; see ``fingerprint``."""

    debian: Optional[str] = None
    """The Debian release whose source package has it."""

    runtime: Optional[Runtime] = None
    """None where no registry has a wheel."""

    @property
    def is_commit(self) -> bool:
        """Whether git's commit id proves a clone by itself."""
        return not self.revision.startswith("refs/")


def _release(
    version: str, about: str, runtime: Runtime, debian: Optional[str] = None, pinned: bool = True
) -> Base:
    name = f"v{version}"
    return Base(
        name=name,
        version=version,
        about=about,
        revision=f"refs/tags/{name}",
        fingerprint=_FINGERPRINTS / f"{name}.sha256" if pinned else None,
        debian=debian,
        runtime=runtime,
    )


DEFAULT_BASE = "v2.13.0"

BASES: Mapping[str, Base] = MappingProxyType(
    {
        base.name: base
        for base in (
            _release(
                "2.13.0",
                "the default: FSDP runs on the CPU",
                Runtime(pythons=("3.11", "3.12", "3.13", "3.10", "3.14")),
            ),
            _release(
                "2.6.0",
                "Debian 13's",
                Runtime(
                    pythons=("3.11", "3.12", "3.10", "3.9", "3.13"),
                    # Its tests' conftest.py does not load in a newer one.
                    packages=("numpy", "pytest<9", "expecttest"),
                ),
                debian="trixie",
            ),
            _release(
                "1.13.1",
                "Debian 12's",
                Runtime(
                    pythons=("3.10", "3.9", "3.8", "3.7"),
                    # There is a wheel for 3.11, whose FSDP does not import there unpatched.
                    last_resorts=("3.11",),
                    # Newer ones break its compiled code and the collection of its tests.
                    packages=("numpy<2", "pytest<8.2", "expecttest"),
                ),
                debian="bookworm",
            ),
            Base(
                name="trunk-90523",
                version="2.0.0a0",
                about="the commit before pull request 90523",
                revision="082450609c1a37df86ac0463a6278a3c740d41c9~1",
            ),
        )
    }
)


def find_base(name: str) -> Base:
    """The base of this name; any other release, such as ``2.9.1``, is one without a pin."""
    if name in BASES:
        return BASES[name]
    try:
        version = Version(name).public
    except InvalidVersion:
        known = ", ".join(BASES)
        raise UsageError(
            f"'{name}' is not a base: name one of {known}, or a release of torch such as 2.9.1"
        ) from None
    return BASES.get(f"v{version}") or _release(version, "not pinned", Runtime(), pinned=False)

"""Keep each notebook's seconds and its machine's speed: ``workshop/notebook_seconds.json``.

    ./build_site.sh site --record workshop/notebook_seconds.json

writes it anew. ``zorplex-rl check`` multiplies these seconds by the ratio of two calibrations
(``learning/calibration.py``); the rule for a notebook's minutes counts them too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Self

from zorplex_rl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NotebookSeconds:
    """Hold one recording."""

    measured: str
    """The date, like 2026-11-22."""
    machine: str
    """Processor, cores, versions."""
    calibration: float
    """Seconds of one calibration step there: the median of those before each notebook."""
    seconds: Mapping[str, float]
    """Seconds from a notebook's start to its page: by file name without ``.py``."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read ``path``. Raises ConfigError if it is not such a file."""
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
            if not (found.calibration > 0 and all(seconds > 0 for seconds in found.seconds.values())):
                raise ValueError("seconds are above 0")
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is no recording of the notebooks' seconds ({error}); write it anew: ./build_site.sh site --record {path}"
            ) from error
        return found

    @classmethod
    def of_today(cls, machine: str, calibration: float, seconds: Mapping[str, float]) -> Self:
        """Return a recording that was made here and today."""
        return cls(date.today().isoformat(), machine, round(calibration, 4), dict(seconds))

    def write(self, path: Path) -> None:
        """Write to ``path``, one notebook a line. Raises ConfigError if that is not possible."""
        try:
            path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}); give another file") from error

    def expected_here(self, calibration: float) -> dict[str, float]:
        """Return the seconds of each notebook on a machine with another ``calibration``.

        >>> NotebookSeconds("2026-11-22", "two cores", 0.2, {"05_rl_intro": 40.0}).expected_here(0.3)
        {'05_rl_intro': 60.0}
        """
        return {name: round(seconds * calibration / self.calibration, 1) for name, seconds in self.seconds.items()}

"""Declarations of settings, and the types of whole numbers in requests.

    class ServiceSettings:                                              one class for each area
        metricsLedgersMax: int = whole(1_000, "ledgers", 0, 100_000, "…", AT_ONCE, user="operators of …")

The arguments are the default, the unit, the least and the greatest value, the reason, when a new value takes effect,
and who changes it.

Rules
- A setting has a user who would change it. A value that nobody would change is a constant in the code.
- A setting is declared once, as a field of the class of its area. `settings_of` returns the declarations of a class.
  `ledger.settings.broker` joins the areas.
- A setting has the name that it has in Pulsar's broker.conf, if it has the same meaning.
- A setting that names code or a file is never "at once". So only the file with which the broker starts sets it.
- A decoder refuses a number outside the bounds of its type, such as `Int64`.
- Some numbers of Pulsar are unsigned in messages, and signed in Java. `signed` returns the signed number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import msgspec

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.names import nearest

MIB = 1024 * 1024
INT_MAX = 2**31 - 1
TEN_YEARS_SECONDS = 10 * 365 * 24 * 3600

Effect = Literal["at the next start", "at once", "for new ledgers"]
By = Literal["operator", "owner", "administrator"]
"""Users who may change a setting: only the operator, in the file or command with which the broker starts. Or also the
owner, the broker's own user, at an address that only this user reaches. Or also an administrator at any address."""
AT_START: Effect = "at the next start"
AT_ONCE: Effect = "at once"
FOR_NEW_LEDGERS: Effect = "for new ledgers"
_SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Setting:
    """Declaration of a setting, whose value is a whole number or a text.

    A text has no bounds. Its `unit` is the kind of text, such as `url`.

    `effect` states when a new value takes effect. With "at once" the broker reads the value at each use, and `ledger
    settings set` changes the value. With "for new ledgers" the broker reads the value when it starts. The value then
    applies to ledgers that are created from then on.

    `user` names who changes the value.

    `risk` completes the sentence "Another value …" for a value that names code, a file, an address or an identity.
    """

    default: int | str
    unit: str
    reason: str
    effect: Effect = AT_START
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()
    user: str = ""
    risk: str = ""
    name: str = ""

    @property
    def by(self) -> By:
        """The kind of user who may change the value."""
        if not self.live:
            return "operator"
        return "owner" if self.risk else "administrator"

    @property
    def is_text(self) -> bool:
        """Whether the value is a text. Otherwise it is a whole number."""
        return isinstance(self.default, str)

    @property
    def is_switch(self) -> bool:
        """Whether the value is 0 or 1."""
        return self.unit == _SWITCH

    @property
    def live(self) -> bool:
        """Whether the value can be changed while the broker runs."""
        return self.effect == AT_ONCE

    @property
    def bounds(self) -> str:
        """Text about the allowed values, for the settings file."""
        if self.is_text:
            return f"A text: {self.unit}{'' if self.default else '; empty: none'}"
        return f"Unit: {self.unit}; {self.least} to {self.most}"

    def require(self, value: Any) -> None:
        """Raise Refused for a value that is not allowed."""
        if self.is_text:
            self._require_text(value)
        elif type(value) is not int or not self.least <= value <= self.most:
            is_fraction = isinstance(value, float) and self.unit == "percent" and 0 < value < 1
            raise Refused(
                f"setting {self.name!r} is {value!r}, expected an integer from {self.least} to {self.most} {self.unit}",
                hint=f"Use whole percents: {value * 100:.0f}" if is_fraction else "",
            )

    def _require_text(self, value: Any) -> None:
        if not isinstance(value, str) or "\0" in value:
            # The error does not show the value, because it may be a secret.
            raise Refused(f"setting {self.name!r} has type {type(value).__name__}, expected a text ({self.unit})")
        if value and self.choices and value not in self.choices:
            near = nearest(value, self.choices)
            raise Refused(
                f"setting {self.name!r} has a wrong value, expected one of {', '.join(self.choices)}",
                hint=f"Did you mean {near!r}?" if near else "",
            )
        if self.unit == "reference" and value and not value.startswith(("file:", "env:")):
            raise Refused(
                f"setting {self.name!r} has a wrong value, expected a reference",
                hint="Use file:/path or env:NAME. The value is not shown because it may be a secret",
            )


def whole(default: int, unit: str, least: int, most: int, reason: str, effect: Effect = AT_START, *, user: str) -> int:
    """Declare a setting that is a whole number."""
    return field(default=default, metadata={"": Setting(default, unit, reason, effect, least, most, user=user)})


def switch(default: int, reason: str, effect: Effect = AT_START, *, user: str) -> int:
    """Declare a setting that is 0 or 1."""
    return whole(default, _SWITCH, 0, 1, reason, effect, user=user)


def text(
    kind: str,
    reason: str,
    effect: Effect = AT_START,
    *,
    default: str = "",
    choices: tuple[str, ...] = (),
    user: str,
    risk: str = "",
) -> str:
    """Declare a setting that is a text."""
    declared = Setting(default, kind, reason, effect, choices=choices, user=user, risk=risk)
    return field(default=default, metadata={"": declared})


def settings_of(area: type[Any]) -> dict[str, Setting]:
    """Return the settings that a class declares, by name, in order."""
    return {declared.name: replace(declared.metadata[""], name=declared.name) for declared in fields(area)}


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# The number must be below 2**64. msgspec cannot express this bound, so each user of the type checks it: see
# `CommitRun`.
Uint64 = Annotated[int, msgspec.Meta(ge=0)]


def signed(number: int) -> int:
    """Return a number of 64 bits as Java reads it."""
    return number - 2**64 if number >= 2**63 else number

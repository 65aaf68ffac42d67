"""Typed reading of settings that come out of somebody's file. Knows no format: a mapping of names to values is enough."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from chairlift.core.errors import ModelError

MAX_INTEGER = 2**40
"""No size, count or token id of a real model is larger."""

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Fields:
    """The settings of one file. Every method raises ModelError, naming file and key, if a value is not what it must be.

    Methods without a default demand the key. A key whose value is null counts as absent.
    """

    values: Mapping[str, object]
    where: str

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str) -> int:
        return self._whole(key, self._demand(key))

    def integer_or(self, key: str, default: D) -> int | D:
        return self.integer(key) if self.has(key) else default

    def number(self, key: str) -> float:
        value = self._demand(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(key, "a finite number", value)
        return float(value)

    def number_or(self, key: str, default: D) -> float | D:
        return self.number(key) if self.has(key) else default

    def positive(self, key: str) -> float:
        value = self.number(key)
        if value <= 0:
            raise self._wrong(key, "above 0", value)
        return value

    def positive_or(self, key: str, default: D) -> float | D:
        return self.positive(key) if self.has(key) else default

    def text(self, key: str) -> str:
        value = self._demand(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def text_or(self, key: str, default: D) -> str | D:
        return self.text(key) if self.has(key) else default

    def flag_or(self, key: str, default: D) -> bool | D:
        if not self.has(key):
            return default
        value = self.values[key]
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        items = self._list(key)
        if not all(isinstance(item, str) for item in items):
            raise self._wrong(key, "a list of texts", items)
        return tuple(items)  # pyright: ignore[reportReturnType]  # the loop above has looked at each

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers; a single integer is a list of one."""
        if isinstance(self.values.get(key), int):
            return (self.integer(key),)
        return tuple(self._whole(key, item) for item in self._list(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        items = self._list(key)
        if not all(isinstance(item, int | float) for item in items):
            raise self._wrong(key, "a list of numbers", items)
        return tuple(items)  # pyright: ignore[reportReturnType]  # the loop above has looked at each

    def group(self, key: str) -> "Fields":
        """The settings nested under a key; none at all if the key is absent."""
        if not self.has(key):
            return Fields({}, f"{self.where}: {key}")
        value = self.values[key]
        if not isinstance(value, dict):
            raise self._wrong(key, "a group of settings", value)
        return Fields(value, f"{self.where}: {key}")

    def _demand(self, key: str) -> object:
        value = self.values.get(key)
        if value is None:
            raise ModelError(f"{self.where}: {key} is missing")
        return value

    def _list(self, key: str) -> list[object]:
        value = self._demand(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value

    def _whole(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INTEGER:
            raise self._wrong(key, "a whole number that is not negative", value)
        return value

    def _wrong(self, key: str, wanted: str, value: object) -> ModelError:
        shown = repr(value)
        return ModelError(f"{self.where}: {key} must be {wanted}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")

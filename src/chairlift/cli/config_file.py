"""Settings out of a YAML file: keys are the long flags of a command, and the command line wins over them."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import typer
import yaml

from chairlift.core.errors import ConfigError

MAX_BYTES = 1024 * 1024


class Parameter(Protocol):
    """What is asked of a flag or an argument of a command."""

    name: str
    opts: list[str]
    secondary_opts: list[str]
    multiple: bool


class _Target(NamedTuple):
    """Where the value of a key goes: to a parameter, upside down if the key is a --no-... flag."""

    parameter: str
    multiple: bool
    negated: bool


def read_into(context: typer.Context, path: Path | None) -> Path | None:
    """The callback of `--config`: makes the file's settings the defaults of this command. ConfigError in one line."""
    if path is not None:
        parameters = cast("Sequence[Parameter]", context.command.params)
        context.default_map = settings(path, parameters)
    return path


def settings(path: Path, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Values by the names of the parameters. ConfigError names a file that cannot be read, and a key that is no flag."""
    targets = _targets(parameters)
    return dict(_setting(path, key, value, targets) for key, value in _mapping(path).items())


def _mapping(path: Path) -> Mapping[object, object]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: a configuration may have at most {MAX_BYTES} bytes")
        read = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply for a configuration") from None
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise ConfigError(f"{path}: must have lines such as `port: 8080`")
    return cast("Mapping[object, object]", read)


def _targets(parameters: Sequence[Parameter]) -> dict[str, _Target]:
    targets: dict[str, _Target] = {}
    for parameter in parameters:
        multiple = bool(getattr(parameter, "multiple", False))
        for flags, negated in ((parameter.opts, False), (parameter.secondary_opts, True)):
            targets |= {_key(flag): _Target(parameter.name, multiple, negated) for flag in flags if len(_key(flag)) > 1}
    for reserved in ("config", "help"):
        targets.pop(reserved, None)
    return targets


def _key(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")


def _setting(path: Path, key: object, value: object, targets: Mapping[str, _Target]) -> tuple[str, Any]:
    name = str(key).replace("_", "-")
    target = targets.get(name)
    if target is None:
        close = difflib.get_close_matches(name, targets, n=1)
        raise ConfigError(f"{path}: there is no flag --{name}" + (f"; is --{close[0]} meant?" if close else ""))
    if target.negated:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {name} must be true or false")
        return target.parameter, not value
    if target.multiple:
        return target.parameter, [str(item) for item in cast("list[object]", value)] if isinstance(value, list) else [
            str(value)
        ]
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ConfigError(f"{path}: {name} must be a single value")
    return target.parameter, value

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.config_file import MAX_BYTES, settings
from chairlift.core.errors import ConfigError


@dataclass
class Flag:
    name: str
    opts: list[str]
    secondary_opts: list[str] = field(default_factory=list[str])
    multiple: bool = False


FLAGS = [
    Flag("model", ["model"]),
    Flag("port", ["--port"]),
    Flag("max_model_len", ["--max-model-len"]),
    Flag("caching", ["--enable-caching"], ["--no-enable-caching"]),
    Flag("names", ["--served-model-name"], multiple=True),
    Flag("config", ["--config"]),
    Flag("help", ["--help", "-h"]),
]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("port: 8080", {"port": 8080}),
        ("max-model-len: 32k", {"max_model_len": "32k"}),
        ("max_model_len: 4096", {"max_model_len": 4096}),
        ("model: smollm2", {"model": "smollm2"}),
        ("enable-caching: false", {"caching": False}),
        ("no-enable-caching: true", {"caching": False}),
        ("served-model-name: a", {"names": ["a"]}),
        ("served-model-name: [a, 2]", {"names": ["a", "2"]}),
    ],
)
def test_keys_are_flags(tmp_path: Path, text: str, values: dict[str, Any]) -> None:
    file = tmp_path / "chairlift.yaml"
    file.write_text(text)
    assert settings(file, FLAGS) == values


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prot: 1", "there is no flag --prot; is --port meant?"),
        ("config: other.yaml", "there is no flag --config"),
        ("h: true", "there is no flag --h"),
        ("3: 4", "there is no flag --3"),
        ("port: [1, 2]", "port must be a single value"),
        ("no-enable-caching: 1", "must be true or false"),
        ("- port", "must have lines such as"),
        ("port: ]", "is not YAML"),
        ("port: !!python/object/apply:os.getcwd []", "is not YAML"),
        ("#" * (MAX_BYTES + 1), "may have at most"),
        ("a: " + "[" * 20_000, "nested too deeply"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "chairlift.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        settings(file, FLAGS)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        settings(tmp_path / "none.yaml", FLAGS)

"""Compares the tensors that a file has with those that a description asks for. Knows names and shapes only."""

from collections.abc import Collection, Mapping

from chairlift.core.errors import ModelError
from chairlift.models.description import Description

_SHOWN = 3


def check_layout(
    description: Description,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    ignored: Collection[str] = (),
) -> None:
    """ModelError unless every tensor of the layout is there, in its shape, and none but these and the ignored ones.

    `names` gives for each tensor of the layout its name in the file, `shapes` the shapes of the file's tensors.
    """
    layout = description.layout()
    missing = [names[ours] for ours in layout if names[ours] not in shapes]
    if missing:
        raise ModelError(f"missing tensors: {_some(missing)}")
    unexpected = sorted(set(shapes) - set(names.values()) - set(ignored))
    if unexpected:
        raise ModelError(f"tensors that {description.architecture} does not have: {_some(unexpected)}")
    for ours, wanted in layout.items():
        found = shapes[names[ours]]
        if found != wanted:
            raise ModelError(f"tensor {names[ours]!r} has the shape {found}, it must be {wanted}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN:,} more"

from ipaddress import ip_network

import pytest
import typer

from chairlift.cli.sharing import header, itl_target_s, network, slo_class, weight
from chairlift.server.settings import SloClass


@pytest.mark.parametrize(("written", "read"), [("a=3", ("a", 3.0)), ("b2F=0.5", ("b2F", 0.5)), ("a==b=2", ("a==b", 2.0))])
def test_a_weight_is_read_from_its_end(written: str, read: tuple[str, float]) -> None:
    assert weight(written) == read


@pytest.mark.parametrize("written", ["", "a", "=3", "a=", "a=0", "a=-1", "a=nan", "a=inf", "a=x"])
def test_a_weight_that_is_none_is_a_usage_error(written: str) -> None:
    with pytest.raises(typer.BadParameter):
        weight(written)


@pytest.mark.parametrize("written", ["10.1.0.0/16", "10.1.2.3", "::1", "fd00::/8"])
def test_addresses_and_networks_are_read(written: str) -> None:
    assert network(written) == ip_network(written)


@pytest.mark.parametrize("written", ["", "localhost", "10.1.2.3/16", "10.1.0.0/33", "*"])
def test_what_is_no_network_is_a_usage_error(written: str) -> None:
    with pytest.raises(typer.BadParameter):
        network(written)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("chat=500,50", SloClass("chat", 0.5, 0.05)),
        ("report=60000", SloClass("report", 60.0)),
        ("a-1=0.5,1e3", SloClass("a-1", 0.0005, 1.0)),
    ],
)
def test_a_class_is_a_name_and_milliseconds(written: str, read: SloClass) -> None:
    assert slo_class(written) == read


@pytest.mark.parametrize(
    "written",
    ["", "chat", "chat=", "=500", "chat=0", "chat=500,", "chat=500,0", "chat=500,5,5", "chat=nan", "a b=1", "x" * 65 + "=1"],
)
def test_a_class_that_is_none_is_a_usage_error(written: str) -> None:
    with pytest.raises(typer.BadParameter):
        slo_class(written)


@pytest.mark.parametrize("written", ["", "X Tenant", "X-Tenant:", "x\n", "é"])
def test_what_no_header_is_called_is_a_usage_error(written: str) -> None:
    with pytest.raises(typer.BadParameter):
        header(written)


@pytest.mark.parametrize(
    ("target_ms", "classes", "target_s"),
    [(None, [], None), (None, ["a=1"], None), (None, ["a=1,70", "b=1,50", "c=1"], 0.05), (80.0, ["a=1,50"], 0.08)],
)
def test_the_strictest_class_sets_the_pace_unless_it_is_told(
    target_ms: float | None, classes: list[str], target_s: float | None
) -> None:
    assert itl_target_s(target_ms, [slo_class(one) for one in classes]) == target_s

"""Names of tenants, and the salt of their caches: nobody has another's."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import ConfigError
from chairlift.core.types import MAX_TENANTS
from chairlift.server.flights import OTHERS, Flight, Flights
from chairlift.server.settings import PRIORITIES, Settings, SloClass
from chairlift.server.tenants import MAX_NAME_CHARS, NOBODY, Asker, named, weights

NAMES = st.text(st.sampled_from("ab:1_"), max_size=4) | st.text(max_size=2 * MAX_NAME_CHARS)


def flight(tenant: str) -> Flight:
    return Flight("r", 0, "", "tiny", 0, tenant)


@given(one=NAMES, other=NAMES)
def test_no_two_names_are_the_same_tenant(one: str, other: str) -> None:
    assert (named(one) == named(other)) is (one == other)


@given(name=NAMES)
def test_names_are_kept_short_and_apart_from_keys_and_from_the_others(name: str) -> None:
    assert len(named(name)) <= MAX_NAME_CHARS + 5
    assert not named(name).startswith("key:")
    assert named(name) != OTHERS


@given(one=st.tuples(NAMES, NAMES), other=st.tuples(NAMES, NAMES))
def test_no_two_pairs_of_tenant_and_salt_share_a_cache(one: tuple[str, str], other: tuple[str, str]) -> None:
    (vault, salt), (another, more) = one, other
    ours, theirs = Asker("", "", vault, 0, 0).salted(salt), Asker("", "", another, 0, 0).salted(more)
    assert (ours == theirs) is (one == other)


def test_with_neither_tenant_nor_salt_the_cache_is_everyones() -> None:
    assert Asker("", NOBODY, NOBODY, 0, 0).salted("") == ""


def test_a_weight_for_no_key_is_refused_without_a_word_of_it() -> None:
    with pytest.raises(ConfigError) as caught:
        weights(Settings(api_keys=("one",)), [("one", 2.0), ("sesame", 3.0)])
    assert "sesame" not in str(caught.value)


def test_nobody_who_is_served_loses_his_seat() -> None:
    flights = Flights()
    crowd = {f"r{number}": flight(f"t{number}") for number in range(MAX_TENANTS - 1)}
    with flights.entered(crowd):
        assert (flights.seat("t5"), flights.seat("new")) == ("t5", OTHERS)
        with flights.entered({"o": flight(OTHERS)}):
            assert (flights.seat("t5"), flights.seat("new")) == ("t5", OTHERS)
    assert flights.seat("new") == "new"


def test_a_seat_is_free_when_its_last_request_has_ended() -> None:
    flights = Flights()
    crowd = {f"r{number}": flight(f"t{number}") for number in range(MAX_TENANTS - 2)}
    with flights.entered(crowd), flights.entered({"a": flight("a"), "b": flight("a")}):
        assert flights.seat("new") == OTHERS
    with flights.entered(crowd):
        assert flights.seat("new") == "new"


NETWORK = (ip_network("10.0.0.0/8"),)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tenant_header": "X-Tenant"}, "need each other"),
        ({"trusted_proxies": NETWORK}, "need each other"),
        ({"max_priority": -1}, "from 0 to 100"),
        ({"max_priority": PRIORITIES + 1}, "from 0 to 100"),
        ({"slo_classes": (SloClass("a", 1.0), SloClass("a", 2.0))}, "named twice"),
    ],
)
def test_settings_that_make_no_sense_together_are_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Settings(**settings)  # type: ignore[arg-type]

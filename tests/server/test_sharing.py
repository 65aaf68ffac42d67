"""Who goes first over HTTP, by class, tenant and target, counted in turns; and who finds whose prompts in the cache."""

import asyncio
from ipaddress import ip_network
from typing import Any, NamedTuple

import httpx
import pytest
from tiny import GatedExecutor, Server, serving, until

from chairlift.core.config import EngineConfig
from chairlift.core.types import MAX_TENANTS
from chairlift.server.flights import Flight
from chairlift.server.settings import Settings, SloClass
from chairlift.server.tenants import weights

PROXY, STRANGER = "10.1.2.3", "192.0.2.9"
KEYS = Settings(api_keys=("one", "two"), admin_key="boss")
PROXIED = Settings(tenant_header="X-Tenant", trusted_proxies=(ip_network("10.1.0.0/16"),))


class Ask(NamedTuple):
    """A request, and where it comes from."""

    name: str
    fields: dict[str, Any]
    headers: dict[str, str]
    address: str

    async def of(self, server: Server, **more: Any) -> httpx.Response:
        body = {"prompt": "q\n", "max_tokens": 2, "request_id": self.name} | self.fields | more
        transport = httpx.ASGITransport(server.app, client=(self.address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.post("/v1/completions", json=body, headers=self.headers)


def by(name: str, *, key: str | None = None, tenant: str | None = None, address: str = "127.0.0.1", **fields: Any) -> Ask:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return Ask(name, fields, headers if tenant is None else headers | {"x-tenant": tenant}, address)


async def turns(*asks: Ask, settings: Settings | None = None, **config: Any) -> list[str]:
    """The names in the order in which they get on. Before the first one can, all are there."""
    one_place = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64, **config)
    async with serving(executor=GatedExecutor, config=one_place, settings=settings or Settings()) as server:
        assert isinstance(server.executor, GatedExecutor)
        return await _turns(server, server.executor, asks)


async def _turns(server: Server, executor: GatedExecutor, asks: tuple[Ask, ...]) -> list[str]:
    key = server.service.settings.api_keys[:1]
    everybody = (by("holder", key=key[0] if key else None, user="holder", max_tokens=5, priority=-100), *asks)
    asking: list[asyncio.Task[httpx.Response]] = []
    executor.allow()
    for ask in everybody:
        asking.append(asyncio.create_task(ask.of(server)))
        await server.taken(len(asking))
        await until(lambda: executor.plans)
    executor.open()
    assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * len(everybody)
    rows = (work.seq_id for plan in executor.plans for work in plan.work)
    return [name for name in dict.fromkeys(row.split("-")[1] for row in rows) if name != "holder"]


# Classes


async def test_lower_priorities_go_first() -> None:
    asks = by("batch", priority=7), by("usual"), by("urgent", priority=-7)
    assert await turns(*asks) == ["urgent", "usual", "batch"]


@pytest.mark.parametrize("priorities", [(100, 10**30), (-100, -(10**30))])
async def test_a_class_that_there_is_not_counts_as_the_nearest(priorities: tuple[int, int]) -> None:
    near, far = priorities
    assert await turns(by("a", priority=near), by("b", priority=far), by("c", priority=near)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("settings", "bounded"),
    [
        (Settings(max_priority=0), True),
        (Settings(max_priority=1), False),
        (Settings(), False),
        (KEYS, True),
        (Settings(api_keys=("one",), max_priority=1), False),
        (PROXIED, True),
    ],
)
async def test_how_far_clients_go_ahead_is_bounded(settings: Settings, bounded: bool) -> None:
    key = "one" if settings.api_keys else None
    order = await turns(by("usual", key=key), by("urgent", key=key, priority=-1), settings=settings)
    assert order == (["usual", "urgent"] if bounded else ["urgent", "usual"])


async def test_strangers_may_always_step_back() -> None:
    assert await turns(by("batch", key="one", priority=3), by("usual", key="one"), settings=KEYS) == ["usual", "batch"]


async def test_the_admin_key_is_not_bounded() -> None:
    asks = by("last", key="boss", priority=500), by("batch", key="one", priority=500), by("urgent", key="boss", priority=-5)
    assert await turns(*asks, settings=KEYS) == ["urgent", "batch", "last"]


async def test_under_first_come_first_served_a_priority_is_accepted_and_of_no_use() -> None:
    assert await turns(by("a"), by("b", priority=-3), scheduling_policy="fcfs") == ["a", "b"]


# Tenants

TENANTS: list[tuple[str, Settings, dict[str, Any], dict[str, Any], bool]] = [
    ("two keys", KEYS, {"key": "one"}, {"key": "two"}, True),
    ("two users of a key", KEYS, {"key": "one", "user": "a"}, {"key": "one", "user": "b"}, False),
    (
        "two headers of a key",
        Settings(api_keys=("one",), tenant_header="X-Tenant", trusted_proxies=PROXIED.trusted_proxies),
        {"key": "one", "tenant": "a", "address": PROXY},
        {"key": "one", "tenant": "b", "address": PROXY},
        False,
    ),
    ("two headers", PROXIED, {"tenant": "a", "address": PROXY}, {"tenant": "b", "address": PROXY}, True),
    (
        "a proxy whose address is written as IPv6",
        PROXIED,
        {"tenant": "a", "address": f"::ffff:{PROXY}"},
        {"tenant": "b", "address": f"::ffff:{PROXY}"},
        True,
    ),
    ("one header from two proxies", PROXIED, {"tenant": "a", "address": PROXY}, {"tenant": "a", "address": "10.1.9.9"}, False),
    ("headers of a stranger", PROXIED, {"tenant": "a", "address": STRANGER}, {"tenant": "b", "address": STRANGER}, False),
    ("no address at all", PROXIED, {"tenant": "a", "address": "socket"}, {"tenant": "b", "address": "socket"}, False),
    (
        "two users behind a header",
        PROXIED,
        {"tenant": "a", "user": "a", "address": PROXY},
        {"tenant": "a", "user": "b", "address": PROXY},
        False,
    ),
    ("two users who came past the proxy", PROXIED, {"user": "a"}, {"user": "b"}, False),
    ("headers that nobody asked for", Settings(), {"tenant": "a"}, {"tenant": "b"}, False),
    ("two users", Settings(), {"user": "a"}, {"user": "b"}, True),
    ("a user and nobody", Settings(), {"user": "a"}, {"user": ""}, True),
    ("long names that differ at the end", Settings(), {"user": "x" * 999 + "a"}, {"user": "x" * 999 + "b"}, True),
    ("nobody", Settings(), {}, {}, False),
]


@pytest.mark.parametrize(("settings", "first", "second", "apart"), [case[1:] for case in TENANTS], ids=[c[0] for c in TENANTS])
async def test_tenants_take_turns_and_one_tenant_goes_in_order(
    settings: Settings, first: dict[str, Any], second: dict[str, Any], apart: bool
) -> None:
    asks = by("a1", **first), by("a2", **first), by("a3", **first), by("b1", **second)
    order = await turns(*asks, settings=settings)
    assert order.index("b1") < 3 if apart else order == ["a1", "a2", "a3", "b1"]


async def test_the_last_of_two_headers_is_the_proxys() -> None:
    async with serving(settings=PROXIED) as server:
        transport = httpx.ASGITransport(server.app, client=(PROXY, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            for claimed, cached in (("a", 0), ("b", 16)):
                headers = [("x-tenant", claimed), ("x-tenant", "true")]
                body = {"prompt": "x" * 20 + "\n", "max_tokens": 1}
                answer = (await http.post("/v1/completions", json=body, headers=headers)).json()
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


async def test_a_proxy_is_known_by_its_connection_and_not_by_what_headers_say_of_it() -> None:
    settings = Settings(tenant_header="X-Tenant", trusted_proxies=(ip_network("127.0.0.1"),))
    async with serving(settings=settings, real=True) as server:
        for tenant, cached in (("a", 0), ("b", 0), ("a", 16)):
            headers = {"x-tenant": tenant, "x-forwarded-for": STRANGER}
            body = {"prompt": "x" * 20 + "\n", "max_tokens": 1}
            answer = (await server.http.post("/v1/completions", json=body, headers=headers)).json()
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


@pytest.mark.parametrize(("weight", "order"), [(1.0, ["a1", "b1", "a2", "b2", "a3", "b3"]), (4.0, ["a1", "b1", "b2", "b3"])])
async def test_a_weight_is_a_larger_share(weight: float, order: list[str]) -> None:
    asks = [by(f"a{number}", user="a") for number in (1, 2, 3)] + [by(f"b{number}", user="b") for number in (1, 2, 3)]
    got = await turns(*asks, tenant_weights=weights(Settings(), [("b", weight)]))
    assert got[: len(order)] == order


async def test_with_keys_a_weight_is_the_keys() -> None:
    asks = [by(f"a{number}", key="one") for number in (1, 2, 3)] + [by(f"b{number}", key="two") for number in (1, 2, 3)]
    got = await turns(*asks, settings=KEYS, tenant_weights=weights(KEYS, [("two", 4.0)]))
    assert got.index("b3") < got.index("a2")


async def test_beyond_so_many_tenants_newcomers_share_one_part() -> None:
    others = {f"r{n}": Flight(f"r{n}", 0, "", "tiny", 0, f"name:t{n}") for n in range(MAX_TENANTS - 1)}
    config = EngineConfig(max_model_len=256, num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64)
    async with serving(executor=GatedExecutor, config=config) as server:
        assert isinstance(server.executor, GatedExecutor)
        with server.service.flights.entered(others):
            asks = by("a1", user="a"), by("a2", user="a"), by("a3", user="a"), by("b1", user="b"), by("t1", user="t1")
            order = await _turns(server, server.executor, asks)
    assert [name for name in order if name != "t1"] == ["a1", "a2", "a3", "b1"]
    assert order.index("t1") < 3


# Targets

CLASSES = (SloClass("chat", 0.5, 0.05), SloClass("report", 60.0))


@pytest.mark.parametrize(
    ("loose", "tight"),
    [
        ({"deadline_ms": 9000}, {"deadline_ms": 500.5}),
        ({"slo_class": "report"}, {"slo_class": "chat"}),
        ({"slo_class": "chat", "deadline_ms": 9000}, {"slo_class": "report", "deadline_ms": 800}),
        ({}, {"slo_class": "chat"}),
        ({"slo_class": "report"}, {}),
    ],
)
async def test_whoever_is_due_earlier_goes_first(loose: dict[str, Any], tight: dict[str, Any]) -> None:
    asks = by("loose", **loose), by("tight", **tight)
    order = await turns(*asks, settings=Settings(slo_classes=CLASSES), scheduling_policy="deadline")
    assert order == ["tight", "loose"]


async def test_a_target_is_no_limit() -> None:
    async with serving() as server:
        answer = await server.complete(max_tokens=3, deadline_ms=0.001)
        assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [(Settings(), "this server has none"), (Settings(slo_classes=CLASSES), "this server has chat, report")],
)
async def test_an_unknown_class_is_400_and_told_what_there_is(settings: Settings, said: str) -> None:
    async with serving(settings=settings) as server:
        error = (answer := await server.complete(slo_class="gold")).json()["error"]
        assert (answer.status_code, error["param"]) == (400, "slo_class")
        assert said in error["message"]
        assert "gold" not in answer.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("priority", value) for value in (True, 1.0, "1", [1])),
        *(("deadline_ms", value) for value in (0, -1, "5", 10**12, True)),
        *(("slo_class", value) for value in (1, "x" * 65)),
        ("user", 7),
    ],
)
async def test_what_says_nothing_is_400(field: str, value: Any) -> None:
    async with serving() as server:
        answer = await server.complete(**{field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


# The cache


async def cached(server: Server, ask: Ask) -> int:
    """Tokens of a prompt that is always the same, and that were there already."""
    answer = await ask.of(server, prompt="x" * 40 + "\n", max_tokens=1)
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    ("settings", "first", "second", "shared"),
    [
        (KEYS, {"key": "one"}, {"key": "two"}, False),
        (KEYS, {"key": "one", "user": "a"}, {"key": "one", "user": "b"}, True),
        (Settings(api_keys=("one", "two"), isolate_prefix_cache=False), {"key": "one"}, {"key": "two"}, True),
        (PROXIED, {"tenant": "a", "address": PROXY}, {"tenant": "b", "address": PROXY}, False),
        (PROXIED, {"tenant": "a", "address": PROXY}, {"tenant": "a", "address": PROXY}, True),
        (PROXIED, {"tenant": "a", "address": PROXY}, {"tenant": "a", "address": STRANGER}, False),
        (PROXIED, {"tenant": "a", "address": STRANGER}, {"address": STRANGER}, True),
        (Settings(), {"user": "a"}, {"user": "b"}, True),
        # A salt is never taken for a tenant, nor a tenant for a salt.
        (PROXIED, {"tenant": "x", "address": PROXY}, {"cache_salt": "x"}, False),
        (PROXIED, {"tenant": "x", "address": PROXY}, {"tenant": "x", "cache_salt": "x", "address": PROXY}, False),
        (Settings(), {"cache_salt": "x"}, {"cache_salt": "y"}, False),
        (Settings(), {"cache_salt": "x"}, {}, False),
        (Settings(), {"cache_salt": "x"}, {"cache_salt": "x"}, True),
    ],
)
async def test_whose_prompts_are_found(settings: Settings, first: dict[str, Any], second: dict[str, Any], shared: bool) -> None:
    async with serving(settings=settings) as server:
        assert await cached(server, by("a", **first)) == 0
        assert await cached(server, by("b", **second)) == (32 if shared else 0)
        assert await cached(server, by("c", **first)) == 32


async def test_tenants_that_share_a_part_do_not_share_a_cache() -> None:
    others = {f"r{n}": Flight(f"r{n}", 0, "", "tiny", 0, f"name:t{n}") for n in range(MAX_TENANTS - 1)}
    async with serving(settings=PROXIED) as server:
        with server.service.flights.entered(others):
            assert await cached(server, by("a", tenant="a", address=PROXY)) == 0
            assert await cached(server, by("b", tenant="b", address=PROXY)) == 0
            assert await cached(server, by("c", tenant="a", address=PROXY)) == 32

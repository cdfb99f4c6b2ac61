"""Reading an event: what is signed may still be absurd."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.events import MOST, Event, MalformedError, parse_delivery, timestamp_issue

EVENT = {
    "eventId": "e1", "invocationId": f"inv_{uuid4().hex}", "accountId": f"acc_{uuid4().hex}",
    "agentId": f"agt_{uuid4().hex}", "deploymentId": f"dep_{uuid4().hex}", "runtimeProvider": "cloudflare",
    "timestamp": "2026-11-29T12:00:00Z", "requests": 1, "tokens": 123, "computeMs": 456, "toolCalls": 0,
    "codeExecutionMs": 0, "browserSessions": 0, "errors": 0, "errorClass": None, "provider": {}, "traceId": None,
}  # fmt: skip
MEASURES = ("tokens", "computeMs", "toolCalls", "codeExecutionMs", "browserSessions", "errors")


def read(**fields: Any) -> Event | list[Any]:
    event = {k: v for k, v in (EVENT | fields).items() if v is not ...}
    (item,) = parse_delivery(json.dumps(event).encode()).items
    return item


def raw(text: str) -> Event | list[Any]:
    """Read the event with one literal put in as its tokens."""
    (item,) = parse_delivery(json.dumps(EVENT | {"tokens": "HERE"}).replace('"HERE"', text).encode()).items
    return item


def paths(item: Event | list[Any]) -> list[str]:
    assert isinstance(item, list), "it was accepted"
    return [issue["path"] for issue in item]


def test_the_contract_s_own_example_is_read() -> None:
    event = read()
    assert isinstance(event, Event)
    assert (event.event_id, event.tokens, event.compute_ms) == (b"e1", 123, 456)
    assert event.at == datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.mark.case("ING-04")
@pytest.mark.parametrize(
    "literal",
    ["NaN", "Infinity", "-Infinity", "1e400", "-5", "true", "false", '"100"', "1.5", "1.0", "1e3", "-0.001", "1e-12",
     str(10**30), str(MOST + 1), "9" * 5000, "null", "[]", "{}", "-0.0"],
)  # fmt: skip
def test_a_number_that_is_no_integer_in_range_is_refused_by_its_name(literal: str) -> None:
    assert "tokens" in paths(raw(literal))


@pytest.mark.case("ING-04")
def test_a_repeated_key_is_refused_wherever_it_is() -> None:
    assert paths(raw('1, "tokens": 999999'))
    assert paths(raw('1, "provider": {"a": 1, "a": 2}'))


def test_a_number_without_a_value_is_refused_in_keys_that_we_do_not_know_too() -> None:
    assert paths(raw('1, "unknown": [NaN]'))


def test_keys_that_we_do_not_know_are_passed_over_whatever_their_numbers() -> None:
    assert isinstance(raw('1, "b": 1, "a": "\\u00e9", "n": 1.0'), Event)


@pytest.mark.parametrize("measure", MEASURES)
@given(value=st.integers(min_value=0, max_value=MOST))
def test_every_integer_in_range_is_read_exactly(measure: str, value: int) -> None:
    event = read(**{measure: value})
    assert isinstance(event, Event)
    assert value in (*event.measures().values(), event.errors)


@pytest.mark.parametrize("measure", MEASURES)
@given(
    value=st.one_of(st.integers(max_value=-1), st.integers(min_value=MOST + 1), st.floats(), st.text(), st.booleans())
)
def test_nothing_else_is(measure: str, value: Any) -> None:
    assert measure in paths(read(**{measure: value}))


@pytest.mark.parametrize("name", ["eventId", "invocationId", "deploymentId", "timestamp", "tokens", "computeMs"])
def test_what_an_event_must_say_is_missed_by_its_name(name: str) -> None:
    assert paths(read(**{name: ...})) == [name]


@pytest.mark.parametrize(
    "name", ["accountId", "agentId", "runtimeProvider", "requests", "toolCalls", "provider", "traceId"]
)
def test_the_rest_may_be_left_out(name: str) -> None:
    assert isinstance(read(**{name: ...}), Event)


@pytest.mark.parametrize("name", ["invocationId", "deploymentId", "accountId", "agentId"])
@pytest.mark.parametrize(
    "value", ["", "inv_", "inv_" + "g" * 32, "acc_" + "A" * 32, "4f6c1d2e" * 4, None, 7, ["inv_"], "x" * 10_000]
)
def test_an_id_that_is_not_well_formed_is_refused(name: str, value: Any) -> None:
    assert paths(read(**{name: value})) == [name]


@pytest.mark.parametrize("value", ["", "x" * 201, "é" * 101, 7, None, True, "\ud800"])
def test_an_event_id_has_1_to_200_bytes(value: Any) -> None:
    assert paths(read(eventId=value)) == ["eventId"]


@pytest.mark.case("ROL-02")
def test_event_ids_are_kept_byte_for_byte() -> None:
    ids = ["1", "1 ", " 1", "A", "a", "é", "é", "a\x00b", "x" * 200]
    events = [read(eventId=i) for i in ids]
    assert [e.event_id for e in events if isinstance(e, Event)] == [i.encode() for i in ids]


@pytest.mark.parametrize(
    "value",
    ["abc", "", "1764417600", "1764417600000", "2026-11-29", "2026-11-29T12:00:00", "2026-11-29 12:00:00Z",
     "2026-11-31T12:00:00Z", "2026-02-30T00:00:00Z", "2026-11-29T24:00:00Z", "2026-11-29T12:00:60Z", "0000-01-01T00:00:00Z",
     "0001-01-01T00:00:00+14:00", "2026-11-29T12:00:00+0100", "2026-11-29T12:00:00Z\n", "٢٠٢٦-11-29T12:00:00Z", 1764417600, None],
)  # fmt: skip
@pytest.mark.case("ING-03")
def test_a_timestamp_without_a_zone_or_sense_is_refused(value: Any) -> None:
    assert paths(read(timestamp=value)) == ["timestamp"]


@given(seconds=st.integers(-(10**9), 10**11), minutes=st.integers(-14 * 60, 14 * 60))
def test_every_instant_is_read_as_itself_in_any_zone(seconds: int, minutes: int) -> None:
    instant = datetime.fromtimestamp(seconds, timezone(timedelta(minutes=minutes)))
    event = read(timestamp=instant.isoformat())
    assert isinstance(event, Event)
    assert event.at == instant


@pytest.mark.case("ING-03")
def test_the_window_is_5_minutes_ahead_and_72_hours_back() -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    second = timedelta(seconds=1)
    for at in (now, now + timedelta(minutes=5), now - timedelta(hours=72)):
        assert timestamp_issue(at, now) is None
    for at in (now + timedelta(minutes=5) + second, now - timedelta(hours=72) - second):
        assert timestamp_issue(at, now) is not None


@pytest.mark.parametrize("value", ["", "x" * 81, "bad\x00", "bad\nline", " lead", 7, True])
def test_an_error_class_is_a_short_printable_name(value: Any) -> None:
    assert paths(read(errorClass=value)) == ["errorClass"]


def test_what_a_provider_adds_is_bounded() -> None:
    assert isinstance(read(provider={"tokensEstimated": True, "ratio": 0.5}), Event)
    assert paths(read(provider={"blob": "x" * 5000})) == ["provider"]
    assert paths(read(provider=[1])) == ["provider"]


def test_an_event_is_about_one_invocation() -> None:
    for value in (2, -1, True, "1", None):
        assert paths(read(requests=value)) == ["requests"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"7", b"null", b'"x"', b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"{}x", b'{"events": {}}', b'{"events": []}',
     b'{"events": null}', b'{"events": [], "events": [{}]}', b"[" * 100_000, b'{"a":' * 50_000],
)  # fmt: skip
def test_what_is_no_event_and_no_batch_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_delivery(body)


@given(body=st.binary(max_size=300))
def test_no_bytes_whatever_raise_anything_else(body: bytes) -> None:
    try:
        parse_delivery(body)
    except MalformedError:
        pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(EVENT)), inner, max_size=4),
    max_leaves=12,
)


@given(fields=st.dictionaries(st.sampled_from(list(EVENT)), json_values, max_size=6))
def test_any_fields_give_an_event_or_named_issues(fields: dict[str, Any]) -> None:
    item = read(**fields)
    assert isinstance(item, Event) or all(set(i) == {"path", "message"} for i in item)


@pytest.mark.case("ING-04")
def test_one_absurd_item_does_not_spoil_its_neighbours() -> None:
    good = json.dumps(EVENT)
    bad = good.replace('"tokens": 123', '"tokens": NaN')
    twice = good.replace('"tokens": 123', '"tokens": 1, "tokens": 2')
    batch = parse_delivery(f'{{"events": [{good}, {bad}, {twice}, 7, {good}]}}'.encode())
    assert [isinstance(i, Event) for i in batch.items] == [True, False, False, False, True]
    assert not batch.is_single


def test_a_batch_of_one_too_many_shows_it() -> None:
    batch = parse_delivery(json.dumps({"events": [EVENT] * 5000}).encode())
    assert len(batch.items) == 101

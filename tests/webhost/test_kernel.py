"""The kernel that all apps share: errors, ids, periods, signatures, trace ids."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from datetime import UTC, date, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhost.errors import (
    ConflictError,
    ErrorCode,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    WebhostError,
)
from webhost.ids import Prefix, new_id, parse_id, public_id
from webhost.period import ends_at, key_of, next_period, parse_key, period_of, previous_period, starts_at
from webhost.signing import (
    Purpose,
    current_root_key_id,
    deployment_key,
    derive_key,
    root_keys,
    sign,
    sign_settlement,
    signature_header,
    verify,
    verify_settlement,
)
from webhost.tracing import JsonFormatter, TraceFilter, bind_trace_id, current_trace_id, trace_id_of

ROOT = bytes(range(32))


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "code", "status", "retryable", "retry_after"),
        [
            (UnauthenticatedError(), "UNAUTHENTICATED", 401, False, None),
            (ForbiddenError("no"), "UNAUTHORIZED", 403, False, None),
            (NotFoundError(), "NOT_FOUND", 404, False, None),
            (InvalidRequestError("no"), "INVALID_REQUEST", 400, False, None),
            (InvalidRequestError("no", status=413), "INVALID_REQUEST", 413, False, None),
            (ConflictError("no"), "CONFLICT", 409, False, None),
            (ConflictError("later", retryable=True, retry_after=2), "CONFLICT", 409, True, 2),
            (InternalError(), "INTERNAL", 500, False, None),
            (UnavailableError(), "INTERNAL", 503, True, 5),
        ],
    )
    def test_each_kind_knows_its_code_status_and_whether_to_try_again(
        self, error: WebhostError, code: str, status: int, retryable: bool, retry_after: int | None
    ) -> None:
        assert (error.code, error.status, error.retryable, error.retry_after) == (code, status, retryable, retry_after)

    def test_the_envelope_has_the_contracts_shape(self) -> None:
        error = InvalidRequestError("A name is needed.", path="name")
        assert error.envelope("trc_1") == {
            "error": {
                "code": "INVALID_REQUEST",
                "message": "A name is needed.",
                "details": {"issues": [{"path": "name", "message": "A name is needed."}]},
                "retryable": False,
            },
            "traceId": "trc_1",
        }

    def test_an_errors_own_settings_do_not_change_its_kind(self) -> None:
        ConflictError("later", retryable=True, retry_after=9, status=400)
        assert (ConflictError.retryable, ConflictError.retry_after, ConflictError.status) == (False, None, 409)

    def test_the_codes_are_the_contracts_ten(self) -> None:
        assert set(ErrorCode) == {
            "UNAUTHENTICATED", "UNAUTHORIZED", "NOT_FOUND", "INVALID_REQUEST", "CONFLICT", "LIMIT_EXCEEDED",
            "RATE_LIMITED", "DEPLOYMENT_FAILED", "RUNTIME_ERROR", "INTERNAL",
        }  # fmt: skip


class TestIds:
    def test_a_new_id_is_a_uuid_of_version_7_that_carries_the_time(self) -> None:
        before = datetime.now(UTC)
        made = new_id()
        at = datetime.fromtimestamp((made.int >> 80) / 1000, UTC)
        assert made.version == 7
        assert made.variant == "specified in RFC 4122"
        assert abs(at - before) < timedelta(seconds=2)

    def test_ids_made_one_after_the_other_sort_in_that_order_and_differ(self) -> None:
        made = [new_id() for _ in range(2000)]
        assert len(set(made)) == 2000
        # The clock ticks in nanoseconds and the id in a quarter of a microsecond: neighbours may tie.
        assert [i.int >> 64 for i in made] == sorted(i.int >> 64 for i in made)

    @given(st.uuids(), st.sampled_from(Prefix))
    def test_a_public_id_reads_back(self, value: UUID, prefix: Prefix) -> None:
        text = public_id(prefix, value)
        assert text == f"{prefix}_{value.hex}"
        assert parse_id(prefix, text) == value

    @pytest.mark.parametrize(
        "text",
        [
            "", "agt_", "agt", None, 7, "dep_" + "0" * 32, "agt_" + "0" * 31, "agt_" + "0" * 33, "agt_" + "A" * 32,
            "agt_" + "0" * 32 + "\n", " agt_" + "0" * 32, "0" * 32, "agt_" + "é" * 32, "agt_" + "\u0660" * 32,
            "agt_{" + "0" * 30 + "}", ["agt_" + "0" * 32],
        ],
    )  # fmt: skip
    def test_anything_malformed_is_an_id_that_does_not_exist(self, text: object) -> None:
        with pytest.raises(NotFoundError):
            parse_id(Prefix.AGENT, text)


class TestPeriods:
    @pytest.mark.parametrize(
        ("instant", "key"),
        [
            ("2026-10-31T23:59:59.999999+00:00", "2026-10"),
            ("2026-11-01T00:00:00+00:00", "2026-11"),
            ("2026-10-31T17:30:00-07:00", "2026-11"),  # Los Angeles' evening is the next month already
            ("2026-11-01T05:29:59+05:30", "2026-10"),  # Kolkata's morning is still the last one
            ("2026-12-31T23:59:59+00:00", "2026-12"),
            ("2027-01-01T00:00:00+00:00", "2027-01"),
            ("2028-02-29T12:00:00+00:00", "2028-02"),
        ],
    )
    def test_an_instant_falls_in_the_month_that_it_has_in_utc(self, instant: str, key: str) -> None:
        assert key_of(period_of(datetime.fromisoformat(instant))) == key

    def test_an_instant_without_a_zone_is_refused(self) -> None:
        with pytest.raises(ValueError, match="time zone"):
            period_of(datetime.fromisoformat("2026-11-01"))

    def test_a_period_is_half_open(self) -> None:
        november = date(2026, 11, 1)
        assert starts_at(november) == datetime(2026, 11, 1, tzinfo=UTC)
        assert ends_at(november) == datetime(2026, 12, 1, tzinfo=UTC) == starts_at(date(2026, 12, 1))

    def test_the_year_turns(self) -> None:
        assert next_period(date(2026, 12, 1)) == date(2027, 1, 1)
        assert previous_period(date(2027, 1, 1)) == date(2026, 12, 1)

    @given(st.datetimes(datetime(2000, 2, 1), datetime(2100, 1, 1), timezones=st.just(timezone(timedelta(hours=9)))))  # noqa: DTZ001 - hypothesis wants them naive
    def test_every_instant_is_in_exactly_one_period_and_its_neighbours_touch_it(self, at: datetime) -> None:
        period = period_of(at)
        assert starts_at(period) <= at < ends_at(period)
        assert parse_key(key_of(period)) == period
        assert next_period(previous_period(period)) == period == previous_period(next_period(period))

    @pytest.mark.parametrize("text", ["", "2026", "2026-13", "2026-00", "2026-1", "26-01", "2026-11-01", "2026-11\n",
                                      "٢٠٢٦-11", "0000-01", "9999-12", "current"])  # fmt: skip
    def test_any_other_name_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidRequestError):
            parse_key(text)


class TestSigning:
    def test_a_key_is_hkdf_sha256_of_its_root_as_rfc_5869_has_it(self) -> None:
        """Extract with an empty salt, then one block of expand, by hand; the Workers side does the same."""
        extracted = hmac.digest(bytes(32), ROOT, "sha256")
        by_hand = hmac.digest(extracted, b"telemetry:dep_1" + b"\x01", "sha256")
        assert derive_key(ROOT, Purpose.TELEMETRY, "dep_1") == by_hand

    def test_purposes_deployments_and_roots_have_keys_of_their_own(self) -> None:
        keys = {
            derive_key(root, purpose, deployment)
            for root in (ROOT, ROOT[::-1])
            for purpose in Purpose
            for deployment in ("dep_1", "dep_2")
        }
        assert len(keys) == 2 * len(Purpose) * 2

    def test_what_was_signed_is_verified_to_the_byte(self) -> None:
        body = b'{"b":1,  "a":"\\u00e9", "n":1.0}\n'
        header = signature_header(ROOT, body)
        assert header == "v1=" + hmac.new(ROOT, body, hashlib.sha256).hexdigest()
        assert verify(ROOT, body, header)
        assert not verify(ROOT, body.replace(b"  ", b" "), header)
        assert not verify(ROOT[::-1], body, header)

    def test_of_two_signatures_during_a_rotation_either_one_will_do(self) -> None:
        good = sign(ROOT, b"x")
        assert verify(ROOT, b"x", f"v1={'0' * 64},v1={good}")
        assert verify(ROOT, b"x", f"t=1, v1={good}, v1={'0' * 64}")

    @pytest.mark.parametrize(
        "header",
        [
            None, "", "v1", "v1=", "sha256=", f"v0={sign(ROOT, b'x')}", sign(ROOT, b"x"),
            f"v1={sign(ROOT, b'x').upper()}", f"v1={sign(ROOT, b'x')[:-1]}\xe9",
            f"v1={sign(ROOT, b'x')[:-1]}\udce9", f"v1={sign(ROOT, b'x')}0", f"v1={sign(ROOT, b'x')[:-1]}",
            "v1=" + "0" * 10_000, "v1=" + "é" * 64, f"V1={sign(ROOT, b'x')}", "v1=" + "\udcff" * 64,
            f"v0={sign(ROOT, b'x')},v2={sign(ROOT, b'x')}", "," * 2000, "\x00",
        ],
    )  # fmt: skip
    def test_any_other_header_is_refused_and_none_raises(self, header: str | None) -> None:
        assert verify(ROOT, b"x", header) is False

    @given(st.text(max_size=200), st.binary(max_size=50))
    def test_no_header_whatever_raises(self, header: str, data: bytes) -> None:
        assert verify(ROOT, data, header) is False

    def test_the_first_root_key_is_the_current_one_and_all_are_accepted(self) -> None:
        keys = root_keys()
        assert len(keys) >= 2
        assert current_root_key_id() == list(keys)[0]  # noqa: RUF015 - says "first" in words
        for key_id, root in keys.items():
            assert deployment_key(key_id, Purpose.INVOKE, "dep_1") == derive_key(root, Purpose.INVOKE, "dep_1")
        assert deployment_key("gone", Purpose.INVOKE, "dep_1") is None

    def test_a_settlement_is_signed_so_that_an_altered_one_shows(self) -> None:
        signature = sign_settlement(b"inv_1 tokens 5")
        assert verify_settlement(b"inv_1 tokens 5", signature)
        assert not verify_settlement(b"inv_1 tokens 4", signature)
        for broken in ("", ":", "k1:", "k1", f"gone:{signature.partition(':')[2]}", signature.upper(), "k1:é"):
            assert not verify_settlement(b"inv_1 tokens 5", broken)


class TestTracing:
    def test_a_well_formed_trace_id_is_kept(self) -> None:
        given_id = "trc_" + "0af7651916cd43dd8448eb211c80319c"
        assert trace_id_of(given_id) == given_id

    @pytest.mark.parametrize("header", [None, "", "abc", "trc_" + "0" * 31, "trc_" + "G" * 32, "trc_" + "0" * 32 + "\n",
                                        "trc_" + "0" * 32 + "\r\nX-Evil: 1", "x" * 5000])  # fmt: skip
    def test_anything_else_is_replaced_by_a_new_one(self, header: str | None) -> None:
        made = trace_id_of(header)
        assert made != header
        assert parse_id(Prefix.TRACE, made).version == 7

    def test_a_trace_id_is_bound_to_the_work_inside_and_given_back_after(self) -> None:
        assert current_trace_id() == "-"
        with bind_trace_id("trc_a"):
            with bind_trace_id("trc_b"):
                assert current_trace_id() == "trc_b"
            assert current_trace_id() == "trc_a"
        assert current_trace_id() == "-"

    def test_every_line_of_log_carries_the_trace_id_and_is_one_json_object(self) -> None:
        record = logging.LogRecord("a", logging.INFO, __file__, 1, "hello\n%s", ("wörld",), None)
        with bind_trace_id("trc_a"):
            assert TraceFilter().filter(record)
        line = JsonFormatter().format(record)
        assert "\n" not in line
        assert json.loads(line)["traceId"] == "trc_a"
        assert json.loads(line)["message"] == "hello\nwörld"

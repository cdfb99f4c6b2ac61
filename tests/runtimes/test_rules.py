"""invoke/v1: what a request may say, without a database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes import rules
from webhost.errors import InvalidRequestError


def issues_of(body):
    with pytest.raises(InvalidRequestError) as refused:
        rules.parse_invoke(body)
    return {issue["path"] for issue in refused.value.details["issues"]}


def test_a_prompt_becomes_one_user_message():
    request = rules.parse_invoke({"input": {"prompt": "hi"}})
    assert request.messages == ({"role": "user", "content": "hi"},)
    assert request.session_id is None


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], ""),
        ({}, "input"),
        ({"input": {}}, "input"),
        ({"input": {"prompt": "a", "messages": []}}, "input"),
        ({"input": {"prompt": ""}}, "input.prompt"),
        ({"input": {"prompt": 1}}, "input.prompt"),
        ({"input": {"prompt": "x" * (rules.LONGEST_TEXT + 1)}}, "input.prompt"),
        ({"input": {"messages": []}}, "input.messages"),
        ({"input": {"messages": [{"role": "user", "content": "a"}] * (rules.MOST_MESSAGES + 1)}}, "input.messages"),
        ({"input": {"messages": ["a"]}}, "input.messages[0]"),
        ({"input": {"messages": [{"role": "owner", "content": "a"}]}}, "input.messages[0].role"),
        ({"input": {"messages": [{"role": "user", "content": None}]}}, "input.messages[0].content"),
        ({"input": {"prompt": "a"}, "sessionId": ""}, "sessionId"),
        pytest.param({"input": {"prompt": "a"}, "sessionId": "x" * 257}, "sessionId", marks=pytest.mark.case("AGC-01")),
        ({"input": {"prompt": "a"}, "sessionId": "a\nb"}, "sessionId"),
        ({"input": {"prompt": "a"}, "sessionId": 42}, "sessionId"),
        ({"input": {"prompt": "a"}, "options": []}, "options"),
        ({"input": {"prompt": "a"}, "options": {"maxTokens": True}}, "options.maxTokens"),
        ({"input": {"prompt": "a"}, "options": {"maxTokens": 0}}, "options.maxTokens"),
        ({"input": {"prompt": "a"}, "options": {"temperature": 3}}, "options.temperature"),
        ({"input": {"prompt": "a"}, "options": {"tools": "on"}}, "options.tools"),
        ({"input": {"prompt": "a"}, "options": {"limit": 1}}, "options.limit"),
        ({"input": {"prompt": "a"}, "metadata": []}, "metadata"),
        ({"input": {"prompt": "a"}, "metadata": {"client": "x"}}, "metadata.client"),
        ({"input": {"prompt": "a"}, "tier": "enterprise"}, "tier"),
        ({"input": {"prompt": "a"}, "accountId": "acc_1"}, "accountId"),
    ],
)
def test_a_wrong_request_names_where_it_is_wrong(body, path):
    assert path in issues_of(body)


def test_every_issue_is_named_at_once():
    assert issues_of({"sessionId": 1, "options": {"maxSteps": -1}}) == {"input", "sessionId", "options.maxSteps"}


def test_the_runtime_receives_what_is_allowed_now_and_what_is_left():
    import json

    request = rules.parse_invoke({"input": {"prompt": "日本"}, "options": {"tools": "off"}})
    body = json.loads(
        rules.runtime_body(
            request,
            session_id="ses_1",
            trace_id="trc_1",
            capabilities=frozenset({"memory"}),
            remaining={"requests": 3, "tokens": None},
        )
    )
    assert body["input"]["messages"] == [{"role": "user", "content": "日本"}]
    assert body["capabilities"] == {"memory": True, "codeInterpreter": False, "browser": False}
    assert body["limits"] == {"remaining": {"requests": 3, "tokens": None}}
    assert body["metadata"]["traceId"] == "trc_1"


@pytest.mark.parametrize(("texts", "tokens"), [(("",), 0), (("a",), 1), (("abcd",), 1), (("abcde",), 2), (("日",), 1)])
def test_tokens_that_nobody_reports_are_a_quarter_of_the_bytes_rounded_up(texts, tokens):
    assert rules.estimate_tokens(*texts) == tokens


@given(st.lists(st.text(), max_size=5))
def test_more_text_never_has_fewer_tokens(texts):
    assert rules.estimate_tokens(*texts, "x") >= rules.estimate_tokens(*texts)


def row(**limits):
    then = {"then_requests": 4, "then_tokens": 70, "then_compute_ms": 9}
    return {"limit_requests": 10, "limit_tokens": None, "limit_compute_ms": 5, **then, **limits}


def test_what_is_left_is_never_negative_and_unlimited_stays_null():
    assert rules.remaining_after(row()) == {"requests": 6, "tokens": None, "computeMs": 0}


def test_the_rate_limit_fields_name_what_is_limited_only():
    remaining = rules.remaining_after(row())
    assert rules.rate_limit_headers(row(), remaining, 60) == {
        "RateLimit-Policy": '"requests";q=10, "computeMs";q=5',
        "RateLimit": '"requests";r=6;t=60, "computeMs";r=0;t=60',
    }
    unlimited = row(limit_requests=None, limit_compute_ms=None)
    assert rules.rate_limit_headers(unlimited, rules.remaining_after(unlimited), 60) == {}


@pytest.mark.parametrize(
    ("name", "fine"),
    [("API_KEY", True), ("_x", True), ("1A", False), ("A-B", False), ("", False), ("A" * 65, False), ("É", False)],
)
def test_a_secret_is_called_like_a_variable(name, fine):
    assert rules.valid_secret_name(name) is fine

"""Server-sent events, however the network cuts them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from runtimes.gateway import encode_event
from whs.sse import Event, read_events

TEXTS = st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=20), max_size=5)


def cut(raw: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into pieces of these sizes, again and again."""
    pieces, at, n = [], 0, 0
    while at < len(raw):
        pieces.append(raw[at : at + sizes[n % len(sizes)]])
        at, n = at + sizes[n % len(sizes)], n + 1
    return pieces


@given(texts=TEXTS, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_what_the_gateway_writes_is_read_whatever_the_pieces(texts, sizes):
    raw = b"".join(encode_event("delta", {"text": text}) for text in texts)
    assert [json.loads(event.data)["text"] for event in read_events(cut(raw, sizes))] == texts


@given(end=st.sampled_from(["\n", "\r\n", "\r"]), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_every_end_of_line_means_the_same(end, sizes):
    raw = end.join(["event: a", "data: one", "data:two", "", ": a comment", "data: ü", "", ""]).encode()
    assert list(read_events(cut(raw, sizes))) == [Event("a", "one\ntwo"), Event("message", "ü")]


def test_an_event_comes_out_as_soon_as_its_empty_line_is_there():
    def network():
        yield b"event: delta\ndata: 1\n\nevent: del"
        raise AssertionError("The first event was there already.")

    assert next(read_events(network())) == Event("delta", "1")


def test_an_event_that_was_cut_off_is_no_event():
    assert list(read_events([b"data: 1\n\ndata: 2\n"])) == [Event("message", "1")]


def test_a_byte_order_mark_and_unknown_fields_are_passed_over():
    assert list(read_events([b"\xef\xbb\xbfdata: 1\nid: 7\nretry: 9\n\n", b"event: empty\n\n"])) == [
        Event("message", "1")
    ]

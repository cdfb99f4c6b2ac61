"""What is said of a request before its body is read: who sends it, how large it is, how it is packed."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import RequestFactory

from webhost.errors import InvalidRequestError
from webhost.wire import client_address, refuse_unreadable

PEER = "192.0.2.1"


def request(**meta: str) -> Any:
    return RequestFactory().get("/v1/tiers", REMOTE_ADDR=PEER, **meta)


class TestAddress:
    def test_without_a_proxy_of_ours_the_header_says_nothing(self, settings: Any) -> None:
        settings.TRUSTED_PROXY_COUNT = 0
        for forged in ("203.0.113.9", "203.0.113.9, 198.51.100.7", "x", ""):
            assert client_address(request(HTTP_X_FORWARDED_FOR=forged)) == PEER

    @pytest.mark.parametrize(
        ("proxies", "header", "address"),
        [
            (1, "203.0.113.9", "203.0.113.9"),
            (1, "10.9.9.9, 203.0.113.9", "203.0.113.9"),  # the left part is the client's own invention
            (2, "10.9.9.9, 203.0.113.9, 198.51.100.7", "203.0.113.9"),
            (2, "203.0.113.9", PEER),  # it did not come through both
            (1, "not an address", PEER),
            (1, "", PEER),
            (1, "2001:db8::1", "2001:db8::1"),
        ],
    )
    def test_behind_proxies_only_what_they_wrote_is_believed(
        self, settings: Any, proxies: int, header: str, address: str
    ) -> None:
        settings.TRUSTED_PROXY_COUNT = proxies
        assert client_address(request(HTTP_X_FORWARDED_FOR=header)) == address


class TestBodies:
    @pytest.mark.parametrize(
        ("meta", "status"),
        [
            ({"CONTENT_LENGTH": "101"}, 413),
            ({"CONTENT_LENGTH": "9" * 14}, 413),
            ({"CONTENT_LENGTH": "9" * 40}, 400),
            ({"CONTENT_LENGTH": "-1"}, 400),
            ({"CONTENT_LENGTH": "1e2"}, 400),
            ({"CONTENT_LENGTH": "\u0661"}, 400),
            ({"HTTP_TRANSFER_ENCODING": "chunked"}, 400),
            ({"HTTP_CONTENT_ENCODING": "gzip", "CONTENT_LENGTH": "10"}, 415),
            ({"HTTP_CONTENT_ENCODING": "identity, gzip", "CONTENT_LENGTH": "10"}, 415),
            ({"HTTP_CONTENT_ENCODING": "br"}, 415),
            ({"QUERY_STRING": "a=%00"}, 400),
        ],
    )
    def test_what_cannot_be_read_safely_is_refused_by_its_headers(self, meta: dict[str, str], status: int) -> None:
        with pytest.raises(InvalidRequestError) as refused:
            refuse_unreadable(request(**meta), 100)
        assert refused.value.status == status

    @pytest.mark.parametrize(
        "meta", [{}, {"CONTENT_LENGTH": ""}, {"CONTENT_LENGTH": "100"}, {"HTTP_CONTENT_ENCODING": "Identity"}]
    )
    def test_what_fits_passes(self, meta: dict[str, str]) -> None:
        refuse_unreadable(request(**meta), 100)

"""A bundle is kept under its own hash, whole."""

import hashlib
import io
import secrets

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage

from runtimes.actions.deployments import _keep
from runtimes.models import Artifact


def test_half_of_a_bundle_that_a_killed_process_left_is_replaced_by_the_whole(live_db):
    content = secrets.token_bytes(1000)
    sha256 = hashlib.sha256(content).hexdigest()
    path = Artifact(sha256=sha256, size=len(content)).path
    default_storage.save(path, ContentFile(content[:500]))
    artifact = _keep(sha256, io.BytesIO(content))
    with default_storage.open(artifact.path) as stored:
        assert stored.read() == content


def test_the_same_bundle_is_kept_once(live_db):
    content = secrets.token_bytes(100)
    sha256 = hashlib.sha256(content).hexdigest()
    assert _keep(sha256, io.BytesIO(content)) == _keep(sha256, io.BytesIO(content))
    assert Artifact.objects.filter(sha256=sha256).count() == 1

"""Attestations of wheels: who published a file, signed through sigstore (PEP 740)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from codegen.core.ptxas_rows import ReportError

_COMMIT = "1.3.6.1.4.1.57264.1.13"  # the certificate's claim: the commit that the workflow ran on


def commit_of(wheel: Path, file: Path, publisher: str, offline: bool) -> str | None:
    """Returns the commit that a wheel was published from, as an attestation's certificate has it;
    None if the certificate has none. Raises ReportError if the wheel was not published so.

    Args:
        wheel: its file.
        file: an attestation of it, or the index's provenance, which has several.
        publisher: the workflow that has to have published it: "OWNER/NAME/WORKFLOW.yml".
        offline: whether sigstore's trust root is the one that was installed or last fetched.
    """
    try:
        from pypi_attestations import (
            Attestation,
            AttestationError,
            Distribution,
            GitHubPublisher,
            Provenance,
        )
    except ImportError:
        raise ReportError(
            "checking an attestation needs pypi-attestations: pip install pypi-attestations"
        ) from None
    repository, _, workflow = publisher.rpartition("/")
    if repository.count("/") != 1 or not workflow.endswith((".yml", ".yaml")):
        raise ReportError(f"--publisher: got {publisher!r}, expected OWNER/NAME/WORKFLOW.yml")
    identity = GitHubPublisher(repository=repository, workflow=workflow)
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "attestation_bundles" in data:
            bundles = Provenance.model_validate(data).attestation_bundles
            attestations = [a for bundle in bundles for a in bundle.attestations]
        else:
            attestations = [Attestation.model_validate(data)]
    except OSError as error:
        raise ReportError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # JSON, UTF-8 or the form is wrong
        raise ReportError(f"{file}: not an attestation: {error!s:.200}") from None
    reasons = []
    for attestation in attestations:
        try:
            attestation.verify(identity, Distribution.from_file(wheel), offline=offline)
            claims: dict[str, str] = attestation.certificate_claims
            return claims.get(_COMMIT)
        except AttestationError as error:
            reasons.append(str(error))
    why = "; ".join(dict.fromkeys(reasons)) or "it has no attestation"
    raise ReportError(f"{wheel.name}: not published by {publisher}: {why}")

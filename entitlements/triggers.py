"""Two functions of our trigger libraries, in a form that nobody can switch off and that costs a row nothing.

pgtrigger lets any session skip any trigger (`SET pgtrigger.ignore`): history, its append-only guard and the ledger's
law would be a courtesy. And both libraries open a subtransaction for every row to read a setting that may be missing,
so that one transaction that changes many rows costs the square of their number: 100,000 accounts took 195 s, and take
5 s. The libraries write their own again with some migrations, so ours are put in place after each `migrate`.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import connections

_NEVER_IGNORED: Final = """
CREATE OR REPLACE FUNCTION public._pgtrigger_should_ignore(trigger_name name) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT false $$
"""
_ATTACHED: Final = """
CREATE OR REPLACE FUNCTION _pgh_attach_context() RETURNS pghistory_context.id%TYPE LANGUAGE plpgsql AS $$
DECLARE
    -- Null before the connection's first transaction with a context, empty after it.
    context_id uuid := nullif(current_setting('pghistory.context_id', true), '');
    said jsonb := nullif(current_setting('pghistory.context_metadata', true), '');
BEGIN
    IF context_id IS NULL OR said IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO pghistory_context (id, metadata, created_at, updated_at) VALUES (context_id, said, now(), now())
    ON CONFLICT (id) DO UPDATE SET metadata = EXCLUDED.metadata, updated_at = EXCLUDED.updated_at
     WHERE pghistory_context.metadata <> EXCLUDED.metadata;
    RETURN context_id;
END $$
"""


def harden_triggers(using: str, **_: Any) -> None:
    """Put our forms of the libraries' functions in place; called after each `migrate`, and harmless to repeat."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass('pghistory_context') IS NOT NULL")
        # Not yet where only a part of the migrations ran.
        if cursor.fetchone() == (True,):
            cursor.execute(_NEVER_IGNORED)
            cursor.execute(_ATTACHED)

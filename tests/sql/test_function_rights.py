"""Who may execute which function of the engine: one table, compared with the catalog. A new function fails here until somebody has thought about it."""

from __future__ import annotations

from tests.database import TestDatabase

OWNER = ""
WORKER, STEP, OPERATOR, AUDITOR, PUBLIC = "worker", "step", "operator", "auditor", "public"

# Everything not named here is an inner function: only the owner executes it, from inside of another one.
EXECUTORS: dict[str, str] = {
    # claimed tasks: with the task's token
    "run_sql_steps complete_sql_steps encode_value iso_text tag_value refuse_value": f"{STEP} {WORKER}",
    "complete_step complete_task start_task start_child_in_step set_event_in_step take_message": f"{STEP} {WORKER}",
    "check_mark complete_group refuse_commit": STEP,
    "skip_task name_instance take_callbacks drop_callback read_named_value read_last_success read_run_events": WORKER,
    "defer_to_trigger reschedule_task register_triggerer beat_triggerer fire_triggers end_triggerer read_external": WORKER,
    "claim_folder leave_folder list_dag_files save_dag_files": WORKER,
    "start_step fail_step fail_task defer_task stop_run continue_run read_values list_values record_time receive_message send_from_step set_run_event start_child resolve_commit run_batch": WORKER,
    # the worker itself
    "register_worker end_worker heartbeat claim_tasks unclaim_tasks run_tick load_history check_waits make_partitions": WORKER,
    # anybody's own transaction
    "start_run send_message read_run_event emit_dataset_event": f"{OPERATOR} {STEP} {WORKER}",
    # schedules
    "list_due_dags schedule_runs": WORKER,
    "pause_dag create_backfill preview_backfill steer_backfill": f"{OPERATOR} {WORKER}",
    "read_backfill": f"{AUDITOR} {OPERATOR} {WORKER}",
    # operators
    "cancel_run retry_run fork_run register_dags clear_tasks mark_task answer_approval": f"{OPERATOR} {WORKER}",
    "read_params": f"{OPERATOR} {WORKER}",
    "archive_month list_old_months clean_leftovers set_pool delete_pool set_ageing delete_dag set_connection delete_connection set_variable delete_variable": OPERATOR,
    "list_variables": f"{AUDITOR} {OPERATOR}",
    "track record_write": OPERATOR,  # with the rights of the table's owner
    "seal_ledger": f"{OPERATOR} {WORKER}",
    # readers
    "list_dataset_waits trace_dataset read_run read_task find_run list_entries verify_ledger seal_lag": f"{AUDITOR} {OPERATOR} {WORKER}",
    "who_wrote read_row row_xid whole_xid whole_table is_archived list_writers find_parent_xid find_tracked key_columns": f"{AUDITOR} {OPERATOR}",
    "entry_hash seal_hash find_cluster this_cluster": f"{AUDITOR} {OPERATOR}",
    # harmless
    "now id_at id_time raise_error decide_trigger_rule": PUBLIC,
}
# Functions of readers that run with the caller's own rights, on purpose.
WITH_CALLERS_RIGHTS = """who_wrote read_row row_xid whole_xid whole_table is_archived list_writers find_parent_xid find_tracked key_columns entry_hash
    run_sql_steps encode_value iso_text tag_value refuse_value seal_hash find_cluster this_cluster track now id_at id_time raise_error"""

FUNCTIONS = """
    select p.proname::text, p.prosecdef, p.proowner::regrole::text, 'search_path=pg_catalog, pg_temp' = any(p.proconfig),
        array(select case a.grantee when 0 then 'public' else replace(a.grantee::regrole::text, 'onceflow_', '') end
              from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee <> p.proowner order by 1)
    from pg_proc p where p.pronamespace = 'onceflow'::regnamespace order by 1"""


def expected(name: str) -> list[str]:
    return next((sorted(roles.split()) for names, roles in EXECUTORS.items() if name in names.split()), [])


def test_each_function_is_executed_by_whom_the_table_says(db: TestDatabase) -> None:
    """Nobody else, PUBLIC nothing but what tells and changes nothing; and the table names no function that is not there."""
    found = {name: roles for name, _, _, _, roles in db.sql(FUNCTIONS)}
    assert {name: roles for name, roles in found.items() if roles != expected(name)} == {}, "add it to EXECUTORS, or mend its grants"
    assert {name for names in EXECUTORS for name in names.split()} - found.keys() == set()


def test_what_others_execute_runs_with_the_owner_s_rights_and_a_fixed_path(db: TestDatabase) -> None:
    """A function that a login may call is security definer, owned by onceflow_owner, and finds names in pg_catalog first; or it is a reader's own."""
    for name, is_definer, owner, has_path, roles in db.sql(FUNCTIONS):
        assert owner == "onceflow_owner", name
        is_callers = name in WITH_CALLERS_RIGHTS.split()
        if roles and not is_callers:
            assert is_definer and has_path, name
        if is_definer:
            assert has_path, name
        if is_callers:
            assert not is_definer, name


def test_relations_belong_to_the_owner_alone(db: TestDatabase) -> None:
    """No login role owns anything in the schema, and none may grant what it was granted."""
    assert db.sql("select relname from pg_class where relnamespace = 'onceflow'::regnamespace and relowner <> 'onceflow_owner'::regrole") == []
    grantable = """
        select relname from pg_class, aclexplode(relacl) a where relnamespace = 'onceflow'::regnamespace and a.is_grantable and a.grantee <> relowner
        union all
        select proname from pg_proc, aclexplode(proacl) a where pronamespace = 'onceflow'::regnamespace and a.is_grantable and a.grantee <> proowner"""
    assert db.sql(grantable) == []


def test_login_roles_have_one_role_each(db: TestDatabase) -> None:
    """onceflow_step is a member of nothing; no login but the superuser may become the owner."""
    members = """select m.rolname::text, g.rolname::text from pg_auth_members a join pg_roles m on m.oid = a.member join pg_roles g on g.oid = a.roleid
        where g.rolname like 'onceflow%' and not m.rolsuper order by 1"""
    assert db.sql(members) == [("app", "onceflow_operator"), ("auditor", "onceflow_auditor"), ("worker", "onceflow_worker")]
    assert db.sql("select roleid from pg_auth_members where member = 'onceflow_step'::regrole") == []
    attributes = "select rolname from pg_roles where rolname like 'onceflow%' and (rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)"
    assert db.sql(attributes) == []

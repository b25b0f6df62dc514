"""The guard finds every statement that would end a step's transaction, and nothing else."""

from __future__ import annotations

import time
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.db import guard
from onceflow.db.guard import check_statement, spoils_session
from onceflow.errors import StepSplit

COMMANDS = {
    "commit": "COMMIT",
    "commit work": "COMMIT",
    "commit and chain": "COMMIT",
    "commit prepared 'x'": "COMMIT PREPARED",
    "end": "END",
    "end transaction": "END",
    "rollback": "ROLLBACK",
    "rollback work": "ROLLBACK",
    "rollback transaction and no chain": "ROLLBACK",
    "rollback prepared 'x'": "ROLLBACK PREPARED",
    "abort": "ABORT",
    "begin": "BEGIN",
    "begin isolation level serializable": "BEGIN",
    "start transaction": "START TRANSACTION",
    "start  transaction read only": "START TRANSACTION",
    "prepare transaction 'x'": "PREPARE TRANSACTION",
    "set session characteristics as transaction read only": "SET SESSION CHARACTERISTICS",
    "set role postgres": "SET ROLE",
    "set role to postgres": "SET ROLE",
    "set local role none": "SET LOCAL ROLE",
    "set session role none": "SET SESSION ROLE",
    'set "role" = postgres': "SET ROLE",
    "reset role": "RESET ROLE",
    "set session authorization postgres": "SET SESSION AUTHORIZATION",
    "set local session authorization postgres": "SET LOCAL SESSION AUTHORIZATION",
    "set session_authorization = postgres": "SET SESSION_AUTHORIZATION",
    "reset session authorization": "RESET SESSION AUTHORIZATION",
    "reset all": "RESET ALL",
    "discard all": "DISCARD ALL",
}

SPELLINGS = [
    "{}",
    "{};",
    "  \n\t{}",
    "{} -- at the end",
    "{}/**/;",
    "-- a comment\n{}",
    "-- a comment\r{}",
    "/* one */ {}",
    "/* one /* nested */ still */ {}",
    ";{}",
    ";;  ; {}",
    "select 1; {}",
    "select 1;{};select 2",
    "select ';'; {}",
    "select 'it''s'; {}",
    "select E'it\\'s'; {}",
    "select e'\\\\'; {}",
    "select 'c:\\'; {}",
    'select 1 as "a;b"; {}',
    'select 1 as "a""b"; {}',
    "select $$ it's $$; {}",
    "select $a$ $b$ $a$; {}",
    "select $1$$;$$; {}",
    "select a$$; {}; select b$$",
    "select a\u20ac$$; {}; select b$$",
    "select 1 /* ' */; {} -- '",
    "select 1 -- '\n; {} -- '",
    "select 2 */* odd operator */ 3; {}",
    "select E'a'\n'\\''; {}; select '\\''",
    "select E'a' -- more\n -- and more\n '\\''; {}; select '\\''",
    "select case when true then 1 end; {}",
    "do $$ begin perform 1; end $$; {}",
    "create function f() returns int begin atomic select 1; end; {}",
    "create or replace function f() returns int begin atomic select case when true then 1 end; end; {}",
    "create function f() returns int begin atomic select 1 case; end; {}",
    "create function f() returns int begin atomic select 1 as case; select 2; end; {}",
    "create procedure p(a int default (1)) begin atomic end; {}",
    'create function f("begin" int) returns int return 1; {}',
    "create function f(begin atomic) returns int language sql as 'select 1'; {}",
    "create view begin as select 1 as atomic; {}",
    "\u00a0{}",
    "select 1;\u2003{}",
]

HARMLESS = [
    "",
    ";",
    "select 1",
    "select 1; select 2;",
    "select 'commit'",
    "select '; commit; '",
    "select 'it''s; commit; '",
    "select E'\\'; commit; '",
    "select $$; commit; $$",
    "select $tag$; commit; $$; commit; $tag$",
    'select 1 as "; commit; "',
    "select 1 -- ; commit",
    "select 1 /* ; commit /* ; commit */ ; commit */",
    "select 1 as commit, 2 as end, 3 as rollback",
    "select commit from begin; select 1",
    "select case when a then b else c end; select 2",
    "update t set role = 'x'; select 1",
    "update t set commit = true; select 1",
    "savepoint a; release savepoint a",
    "savepoint a; rollback to a",
    "rollback to savepoint commit",
    "rollback work to savepoint a",
    "rollback transaction to a",
    "set local statement_timeout = 0; set constraints all deferred; set time zone 'utc'",
    "set transaction read only",
    "reset statement_timeout; discard temp",
    "prepare p as select 1",
    "copy t from stdin",
    "copy t (a, b) from stdin with (format csv, delimiter ';')",
    "do $$ begin perform 1; end $$",
    "do $x$ begin commit; end $x$; select 1",
    "create function f() returns int begin atomic select 1; select 2; end",
    "create or replace procedure p() language sql begin atomic insert into t values (1); delete from t; end;",
    "create function f() returns int begin atomic select case when true then 1 else 2 end; end; select 1",
    "create function f() returns void language plpgsql as $$ begin commit; end $$; select 1",
    "create rule r as on insert to t do also (insert into a values (1); insert into b values (2)); select 1",
    "create table commit (begin int, rollback int); create index end_idx on commit (begin)",
    "comment on table t is 'x'; alter table t rename to abort",
    "declare c cursor for select 1; fetch all from c; close c",
    "listen begin; notify begin, 'commit'",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_command_is_refused_in_every_spelling(spelling: str) -> None:
    """Whatever stands before and after it, in any case, the command is found and named in the error."""
    for command, name in COMMANDS.items():
        for written in (command, command.upper(), command.title()):
            text = spelling.replace("{}", written)
            with pytest.raises(StepSplit) as caught:
                check_statement(text)
            assert str(caught.value).startswith(f"{name} is refused in a step"), text


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_passes(text: str) -> None:
    """Literals, quoted names, comments, bodies, labels and savepoints are not taken for commands."""
    check_statement(text)
    check_statement(text.upper() if "$" not in text else text)


@given(st.text(alphabet="'\"$;()/*- \nEeab\\1\u00a0\u20ac", max_size=40))
def test_any_text_is_read_to_its_end(text: str) -> None:
    """No text makes the guard fail otherwise than by refusing, and a COMMIT in front of it is always found."""
    check_statement(text)
    with pytest.raises(StepSplit):
        check_statement(f"commit;{text}")


@given(st.text(max_size=60))
def test_a_well_quoted_literal_never_hides_nor_makes_a_command(inside: str) -> None:
    """Any content, properly quoted, passes; and the COMMIT after it is found."""
    for literal in ("'" + inside.replace("'", "''") + "'", '"' + inside.replace('"', '""') + '"'):
        check_statement(f"select {literal}; select 1; release x")
        with pytest.raises(StepSplit):
            check_statement(f"select {literal}; commit")


def test_the_message_says_where_and_what_to_do() -> None:
    """The error shows the text and the way out."""
    with pytest.raises(StepSplit, match=r"COMMIT is refused in a step \('insert into t values \(1\); commit'\).*savep"):
        check_statement("insert into t\n values (1); commit")
    with pytest.raises(StepSplit, match=r"SET ROLE is refused in a step .* SET LOCAL"):
        check_statement("set role x")


def test_session_spoiling_statements_are_told() -> None:
    """PREPARE, DEALLOCATE, LISTEN and LOAD outlive the step, so the connection must not serve another one."""
    for text in ("prepare p as select 1", "select 1; DEALLOCATE all", "listen c", "load 'x'"):
        assert spoils_session(text)
    for text in ("select 1", "select 'prepare p as select 1'; select 1", "insert into load values (1); select 1"):
        assert not spoils_session(text)


def test_long_texts_are_read_but_not_kept() -> None:
    """A text over the limit is checked without entering the cache."""
    guard._inspect_cached.cache_clear()
    long_text = "insert into t values " + "(1)," * guard.CACHED_TEXT_LIMIT + "(1)"
    check_statement(long_text)
    with pytest.raises(StepSplit):
        check_statement(long_text + "; commit")
    assert guard._inspect_cached.cache_info().currsize == 0
    check_statement("select 1")
    assert guard._inspect_cached.cache_info().currsize == 1


def test_reading_is_fast() -> None:
    """A small statement takes about a microsecond, uncached; a hostile one stays linear."""
    small = "update account set balance = balance - $2 where id = $1 returning balance"
    best = min(timeit.repeat(lambda: guard._inspect_text(small), number=200, repeat=5)) / 200
    assert best < 10e-6
    started = time.perf_counter()
    check_statement("select E'x' " + "-- " * 5_000 + "; reset x")
    check_statement("select " + "''" * 20_000 + "; select 1 as end; select 1")
    assert time.perf_counter() - started < 1

-- The demo's own tables, as any application would have them: nothing in them knows of a workflow engine.
-- No unique constraint guards postings on purpose: if a step ran twice, the second posting would stand here and show.

create table account (
    number   text not null,
    currency text not null,
    posted   numeric not null default 0,        -- the sum of all postings on it
    primary key (number, currency)
);

create table posting (                    -- one row per leg; the two legs of an entry add up to nothing
    id         bigint generated always as identity primary key,
    file       text not null,
    statement  integer not null,                -- the statement's place in its file
    entry      integer not null,                -- the entry's place in its statement
    account    text not null,
    currency   text not null,
    amount     numeric not null,
    amount_eur numeric not null,                -- by the ECB's rate of the day it was booked
    booked_on  date not null,
    text       text not null,
    reference  text not null
);

create table statement (                  -- one row per reconciled statement
    file       text not null,
    statement  integer not null,
    account    text not null,
    reference  text not null,
    currency   text not null,
    opening    numeric not null,                -- the bank's
    computed   numeric not null,                -- opening + the postings on the account
    closing    numeric not null,                -- the bank's
    entries    integer not null,
    closed_on  date not null,
    reconciled boolean not null
);

-- Steps write; an auditor reads.
grant select, insert on account, posting, statement to onceflow_step;
grant update on account to onceflow_step;
grant select on account, posting, statement to onceflow_auditor;

-- Files of dags: who parses a folder, and what each of its files gave.

-- One scheduler parses a folder; others stand by until it has not been seen for a lease.
create table onceflow.dag_folder (
    folder  varchar(1000) primary key,
    owner   bigint not null,
    host    text not null,
    pid     integer not null,
    seen_at timestamptz not null
);

-- A file, as it was when it was last parsed. It is parsed again once one of its sources is another.
create table onceflow.dag_file (
    filename  varchar(1024) primary key,
    folder    varchar(1000) not null,
    sources   jsonb not null,                   -- {path: digest}: the file, and what it read of the folder while it was imported
    dags      text[] not null,                  -- what it declares; of a file that cannot be imported, what it declared before
    parsed_at timestamptz not null,
    parse_s   double precision not null
);
create index dag_file_folder on onceflow.dag_file (folder);
create index dag_file_dags on onceflow.dag_file using gin (dags);

alter table onceflow.import_error add column is_warning boolean not null default false;  -- the dag runs, but not as its author thinks
alter table onceflow.dag add column source text;  -- what its plan was read from: the same source never gives a second plan

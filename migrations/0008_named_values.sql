-- What steps need to know of other systems, by name. What is secret of it is encrypted by whoever sets it: the database never has the key.
create table onceflow.connection (
    id          integer generated always as identity primary key,
    conn_id     varchar(250) unique not null,
    conn_type   varchar(500) not null,
    host        varchar(500),
    schema      varchar(500),
    login       varchar(500),
    password    varchar(5000),                  -- a Fernet token
    port        integer,
    extra       jsonb,                          -- {"$fernet": token}: it is secret as a whole
    description text
);
create table onceflow.variable (
    id           integer generated always as identity primary key,
    key          varchar(250) unique not null,
    val          text not null,
    is_encrypted boolean not null,              -- then val is a Fernet token
    description  text
);

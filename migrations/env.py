"""Alembic's entry: applies the scripts in this folder over the connection that rankmon hands in."""

from alembic import context

from monitor.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
with context.begin_transaction():
    context.run_migrations()

"""Runs migrations on the connection that `mia.memory.schema.migrations` hands over."""

from alembic import context

from mia.memory.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()

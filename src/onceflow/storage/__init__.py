"""Where what does not belong into the database lies: files, object storage."""

"""What brings spans in: live adapters attach to a framework, importers read foreign files."""

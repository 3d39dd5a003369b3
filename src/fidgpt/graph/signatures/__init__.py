"""What a callable's signature and docstring say of its parameters."""

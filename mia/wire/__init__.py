"""HTTP contracts: what goes over the wire, field by field."""

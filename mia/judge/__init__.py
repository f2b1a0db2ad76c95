"""The Judge: grades an attempt once, against the truth."""

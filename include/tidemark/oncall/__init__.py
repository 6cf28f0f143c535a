"""A restore as on-call runs it: checked, planned, approved by a person, done step by step, undone where it fails."""

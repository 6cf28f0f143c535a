"""The database of facts: the history of a deployment, in one SQL database."""

"""The facts of a deployment, in one SQL database."""
